"""Functions of rows within loops, where results may differ by rounding: near the exact ones, and one loop for all."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import dovetail
from dovetail.execute.native import clusters
from dovetail.execute.native.formula import constant, fma, largest, operand, total
from dovetail.execute.native.loop import From, Source
from dovetail.execute.native.machine import unavailable
from dovetail.execute.native.row_loop import KEPT, RowCell, RowLoop, Span
from dovetail.execute.native.sections import sections_of
from tests.execute.native.row_programs import drawn_program, wrong_result
from tests.rotation import rotated

pytestmark = pytest.mark.skipif(bool(unavailable()), reason="no machine code can be made here")

Function = Callable[..., Any]
_EPS = torch.finfo(torch.float32).eps

FUNCTIONS: dict[str, Function] = {
    "softmax": lambda x: (x * 1.5).softmax(-1),
    "safe_softmax": lambda x: torch._safe_softmax((x * 1.5).masked_fill(x > 0.5, -math.inf), -1),
    "log_softmax": lambda x: (x * 1.5).log_softmax(-1),
    "sum": lambda x: (x * 1.5).sum(-1),
    "mean": lambda x: (x * 1.5).mean(-1, keepdim=True),
    "amax": lambda x: (x * 1.5).amax(-1),
    "amin": lambda x: (x * 1.5).amin(-1, keepdim=True),
    "logsumexp": lambda x: (x * 1.5).logsumexp(-1),
    "norm": lambda x: torch.linalg.vector_norm(x * 1.5, dim=-1),
    "var": lambda x: (x * 1.5).var(-1),
    "std": lambda x: (x * 1.5).std(-1, correction=0),
    "var_mean": lambda x: torch.var_mean(x * 1.5, -1),
    "layer_norm": lambda x: F.layer_norm(x * 1.5, x.shape[-1:]),
    "rms_norm": lambda x: x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt(),
    "normalize": lambda x: F.normalize(x * 1.5, dim=-1),
    "halves": lambda x: torch.cat((x[..., : x.shape[-1] // 2] * 2, -x[..., : x.shape[-1] // 2]), -1),
    "scatter": lambda x: (x * 1.5).scatter(-1, x.argmax(-1, keepdim=True), 2.0) + 1,
}


def _flat(found: Any) -> Sequence[Tensor]:
    return found if isinstance(found, tuple) else (found,)


def _fast(function: Function, *given: Any) -> Sequence[Tensor]:
    with torch.no_grad():
        return _flat(dovetail.compile(function, numerics="fast")(*given))


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("size", [(5, 4), (3, 7, 66), (4, KEPT + 2), (4, 4100)])
def test_functions(name: str, size: tuple[int, ...]) -> None:
    function, x = FUNCTIONS[name], torch.randn(size)
    with torch.no_grad():
        eager, exact = _flat(function(x)), _flat(function(x.double()))
    for found, same, wanted in zip(_fast(function, x), eager, exact, strict=True):
        assert (found.dtype, found.shape, found.stride()) == (same.dtype, same.shape, same.stride())
        bound = (size[-1] + 60) * _EPS * wanted.abs().max()  # of sums in any order, and of what is made of them
        assert ((found.double() - wanted).abs() <= bound).all()


@pytest.mark.parametrize("name", sorted(FUNCTIONS.keys() - {"halves", "scatter"}))
def test_infinite_numbers(name: str) -> None:
    """Where eager mode gives infinities or NaN, no result is finite, and elsewhere all are."""
    x = torch.randn(6, 40)
    x[0, 3], x[1, 39], x[2, 0], x[3], x[4] = math.inf, -math.inf, math.nan, -math.inf, 0.0
    with torch.no_grad():
        eager = _flat(FUNCTIONS[name](x))
    for found, same in zip(_fast(FUNCTIONS[name], x), eager, strict=True):
        assert torch.equal(found.isfinite(), same.isfinite())


def test_rows_of_equal_numbers() -> None:
    """What the mean is rounded by is not multiplied by the inverse of a deviation that is zero."""
    x = (torch.randn(50, 1) * 3).expand(50, 7).contiguous()
    (found,) = _fast(lambda x: F.layer_norm(x * 1.0, (7,)), x)
    assert found.abs().max() < 1e-6
    (found,) = _fast(lambda x: (x * 1.0).var(-1), x)
    assert found.abs().max() < 1e-12


@pytest.mark.parametrize("size", [1e-40, 1e-25, 1e-12, 1e12, 1e20, 1e30, 3e38])
def test_deviations_of_huge_and_tiny_numbers(size: float) -> None:
    """Squares of differences neither overflow nor vanish; eager mode adds them in double precision."""
    x = torch.rand(6, 70) * size

    def deviations(x: Tensor) -> tuple[Tensor, ...]:
        y = x * 1.0
        return y.std(-1), y.std(-1, correction=0), torch.var_mean(y, -1)[0], torch.var_mean(y, -1)[1]

    for found, same in zip(_fast(deviations, x), deviations(x), strict=True):
        torch.testing.assert_close(found, same, rtol=1e-6, atol=2e-45)


def test_layer_norm_of_numbers_whose_squares_are_infinite() -> None:
    """The deviation is infinite, and results are zeros, as in eager mode."""
    x = torch.randn(6, 70) * 1e30
    (found,) = _fast(lambda x: F.layer_norm(x * 1.0, (70,)), x)
    assert torch.equal(found, F.layer_norm(x, (70,)))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_rows_are_the_same_wherever_they_stand(name: str) -> None:
    x = torch.randn(300, 130)  # more than one thread gets
    run = dovetail.compile(FUNCTIONS[name], numerics="fast")
    with torch.no_grad():
        whole, part = _flat(run(x)), _flat(run(x[100:104].clone()))
    for a, b in zip(whole, part, strict=True):
        assert torch.equal(a[100:104], b)


def test_loops_over_rows_without_a_function_of_rows() -> None:
    """Numbers for each row, and all elements, share a loop beside another one that has a sum in it."""

    def run(x: Tensor, y: Tensor, norm: Tensor) -> tuple[Tensor, ...]:
        scale = norm * 2.0 + 1.0
        return (y * 1.5).softmax(-1), scale, x * scale + x

    given = torch.randn(16, 24), torch.randn(16, 24), torch.randn(16, 1)
    for found, wanted in zip(_fast(run, *given), run(*given), strict=True):
        torch.testing.assert_close(found, wanted)


def _loops(function: Function, *given: Any, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The nodes of each row of the clusters that are made."""
    found: list[list[str]] = []
    made = clusters.row_of

    def seen(claims: Any, *others: Any) -> Any:
        found.append([claim.node.target._schema.name.removeprefix("aten::") for claim in claims])
        return made(claims, *others)

    monkeypatch.setattr(clusters, "row_of", seen)
    _fast(function, *given)
    return found[len(found) // 2 :]  # the last ones; those before were looked at only


def test_norms_and_what_is_around_them_share_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y, w, b = torch.randn(64, 96), torch.randn(64, 96), torch.randn(96), torch.randn(96)

    def run(x: Tensor, y: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        both = x + y
        return F.layer_norm(both, (96,), w, b).relu() * 2, both

    assert len(_loops(run, x, y, w, b, monkeypatch=monkeypatch)) == 1


def test_parts_are_written_where_they_belong(monkeypatch: pytest.MonkeyPatch) -> None:
    x, cos, sin = torch.randn(64, 1024), torch.randn(64, 512), torch.randn(64, 512)

    def rotated_halves(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    (loop,) = _loops(rotated_halves, x, cos, sin, monkeypatch=monkeypatch)
    assert loop[-1] == "cat"
    (found,) = _fast(rotated_halves, x, cos, sin)
    torch.testing.assert_close(found, rotated_halves(x, cos, sin))


def test_any_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """One program, whose number of rows is a symbol."""

    def run(x: Tensor, w: Tensor, e: Tensor) -> tuple[Tensor, Tensor]:
        h = x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * w
        return (h + e).softmax(-1), h.sum(-1) * 2

    sizes = set()
    made = clusters.row_of

    def seen(claims: Any, storages: Any, addresses: Any, rows: Any = None) -> Any:
        if rows is not None:
            sizes.add(isinstance(rows.rows, int))
        return made(claims, storages, addresses, rows)

    monkeypatch.setattr(clusters, "row_of", seen)
    compiled = torch.compile(run, backend="dovetail", options={"numerics": "fast"})
    with torch.no_grad():
        for rows in (5, 7, 0, 400, 9):
            given = torch.randn(rows, 3, 64), torch.randn(64), torch.randn(rows, 3, 1)
            for found, wanted in zip(compiled(*given), run(*given), strict=True):
                assert found.stride() == wanted.stride()
                torch.testing.assert_close(found, wanted)
    assert sizes == {True, False}


def test_a_row_that_every_row_reads_may_be_written() -> None:
    """The first row is read by all, and then written."""
    x = torch.randn(8, 32)

    def run(x: Tensor) -> tuple[Tensor, Tensor]:
        made = (x - x[0]).softmax(-1)
        x[0].mul_(2.0)
        return made, x.sum(-1)

    with torch.no_grad():
        wanted = run(x.clone())
    for a, b in zip(_fast(run, x.clone()), wanted, strict=True):
        torch.testing.assert_close(a, b)


def test_classes_out_of_range_raise_eagers_error() -> None:
    def run(logits: Tensor, classes: Tensor) -> Tensor:
        zeros = torch.zeros_like(logits) * 1.0
        return zeros.scatter(1, classes[:, None], 0.5) * logits

    compiled = dovetail.compile(run, numerics="fast")
    logits, classes = torch.randn(6, 9), torch.arange(6)
    torch.testing.assert_close(compiled(logits, classes), run(logits, classes))
    classes[2] = 9
    with pytest.raises((RuntimeError, IndexError), match="out of bounds"):
        compiled(logits, classes)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_gradient_of_cross_entropy(reduction: str) -> None:
    logits, classes = torch.randn(200, 70, requires_grad=True), torch.arange(200) % 70
    classes[5] = -100

    def run(logits: Tensor) -> Tensor:
        return F.cross_entropy(logits * 1.5, classes, reduction=reduction)

    (found,) = torch.autograd.grad(dovetail.compile(run, numerics="fast")(logits), logits)
    exact = logits.detach().double().requires_grad_()
    (wanted,) = torch.autograd.grad(run(exact), exact)
    torch.testing.assert_close(found.double(), wanted, rtol=2e-5, atol=1e-6 * float(wanted.abs().max()))


def test_results_are_kept_read_again_or_computed_again() -> None:
    """A sum that is stored is read where it lies, a long one is kept, and of long rows it is computed again."""
    x, y = Source(From.CELL, 0), Source(From.CELL, 1)
    a, b = operand(0), operand(1)
    grown = fma(a, b, a * a) / (b * b + constant(1.0))
    moved = grown - largest(grown)
    cells = (RowCell(Span.WHOLE), RowCell(Span.WHOLE), RowCell(Span.WHOLE), RowCell(Span.EACH))
    steps = ((moved, (x, y)), (total(moved * moved), (x, y)))
    for keeps in (True, False):
        made = sections_of(RowLoop(cells, 0, steps, ((2, 0), (3, 1)), keeps))
        assert made.last == 1
        assert len(made.kept) == keeps
    stored = sections_of(RowLoop(cells, 0, ((grown, (x, y)), steps[1]), ((2, 0), (3, 1)), keeps=True))
    assert (len(stored.kept), len(stored.stored)) == (0, 1)
    assert stored.stores[2][1] == 0


def test_eager_numerics_keep_eagers_bits() -> None:
    for name, function in FUNCTIONS.items():
        x = torch.randn(40, 64)
        with torch.no_grad():
            for a, b in zip(_flat(dovetail.compile(function)(x)), _flat(function(x)), strict=True):
                assert torch.equal(a, b), name


@pytest.mark.parametrize("seed", rotated(range(120), 10))
def test_random_programs(seed: int) -> None:
    assert wrong_result(drawn_program(seed)) == ""
