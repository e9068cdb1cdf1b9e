"""The tour runs, prints what it promises, and its toy compiler is right or says what it cannot do."""

from __future__ import annotations

import contextlib
import io
import re
import runpy
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

_DOCS = Path(__file__).resolve().parent.parent.parent / "docs"


@pytest.fixture(scope="module")
def tour() -> Iterator[SimpleNamespace]:
    """What the tour defines, and what it printed."""
    torch.compiler.reset()
    with torch.random.fork_rng(devices=[]), contextlib.redirect_stdout(io.StringIO()) as out:
        names = runpy.run_path(str(_DOCS / "tour.py"))
        yield SimpleNamespace(**names, printed=out.getvalue())
    torch.compiler.reset()


def test_every_step_prints_what_it_made(tour: SimpleNamespace) -> None:
    printed = tour.printed
    for line in (
        "1, 2. What `layer` does, recorded:",
        "    aten.mul_.Tensor(select_2, 2)",
        "3. A write through two views, recorded and functional:",
        "view_scatter(add_0, mul_3, [aten.t.default], [aten.select.int, 0, 0])",
        "4. Forward and backward of `layer`, one functional program:",
        "8. The backward that runs:",
        "9. Results, gradients, written inputs and random numbers are those of eager, bit by bit.",
        "10. As a back end of torch.compile: the same once more.",
    ):
        assert line in printed, line


def _numbers(pattern: str, printed: str) -> list[int]:
    found = re.search(pattern, printed)
    assert found is not None, pattern
    return [int(number) for number in found.groups()]


def test_what_it_prints_makes_sense(tour: SimpleNamespace) -> None:
    before, after = _numbers(r"Simplified: (\d+) nodes -> (\d+)", tour.printed)
    assert after < before
    (kept,) = _numbers(r"Keep all: (\d+) bytes", tour.printed)
    (recomputed,) = _numbers(r"Keep or recompute: (\d+) bytes", tour.printed)
    assert recomputed < kept
    keeping, recomputing = _numbers(r"Peak, known before it runs: (\d+) bytes. Recomputing: (\d+) bytes", tour.printed)
    measured, eager = _numbers(r"Peak, measured: (\d+) bytes, as promised. Eager: (\d+) bytes", tour.printed)
    assert measured == min(keeping, recomputing)
    assert measured < eager


def test_it_names_modules_that_exist() -> None:
    source = (_DOCS / "tour.py").read_text(encoding="utf-8")
    named = re.findall(r"src/dovetail/[\w/.]*\w|(?:ops|ir|partition|inspect)/\w+\.py", source)
    assert len(named) > 10
    root = _DOCS.parent / "src" / "dovetail"
    missing = [name for name in named if not (root / name.removeprefix("src/dovetail/")).exists()]
    assert missing == []


# --- functions that it compiles as they are in eager ------------------------------------------------------------------


def _mlp(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.gelu(F.linear(x, weight, bias))


def _attention(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    q, k, v = (x @ weight).chunk(3, -1)
    return F.dropout((q @ k.transpose(1, 2)).softmax(-1), 0.1) @ v


def _norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, (8,), weight, bias).relu()


def _two_views(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    h = x @ weight
    a, b = h[:, :4], h[:, 4:]
    a.mul_(2)
    b.add_(a)
    h.t()[1].zero_()
    return h.sum(1), (a * b).tanh()


def _items_of_unbind(x: torch.Tensor) -> torch.Tensor:
    y = x * 1
    y.unbind(0)[1].add_(1)
    return y + 0


def _cache(cache: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    cache[2:4].copy_(x)
    return cache.sum(0) + 1


def _write_before_recompute(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    y = x.exp()
    x.mul_(0.5)
    return y * weight.sin()


def _untracked_write(weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        weight.mul_(0.5)
    return x @ weight


def _noise(x: torch.Tensor) -> torch.Tensor:
    return x * torch.empty_like(x).uniform_(-1, 1) + torch.randn_like(x)


def _chain(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    for _ in range(4):
        y = y + y.sin() * x
    return y


def _several(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return x.exp(), x.sin().detach(), x.argmax()


def _transposed_write(x: torch.Tensor) -> torch.Tensor:
    x.t()[:, ::2].mul_(2)
    return x + 1


def _mixed_types(x: torch.Tensor) -> torch.Tensor:
    y = x.bfloat16()
    y.add_(x)
    return y


_COMPILED: list[tuple[Callable[..., Any], list[tuple[int, ...]], list[int]]] = [
    (_mlp, [(4, 8), (16, 8), (16,)], [1, 2]),
    (_attention, [(2, 5, 8), (8, 24)], [0, 1]),
    (_norm, [(3, 8), (8,), (8,)], [0, 1, 2]),
    (_two_views, [(3, 5), (5, 8)], [1]),
    (_items_of_unbind, [(2, 3)], []),
    (_cache, [(5, 3), (2, 3)], []),
    (_write_before_recompute, [(5,), (5,)], [1]),
    (_untracked_write, [(3, 3), (2, 3)], [0]),
    (_noise, [(4, 4)], [0]),
    (_chain, [(6,)], [0]),
    (_several, [(4,)], [0]),
    (_transposed_write, [(4, 4)], []),
    (_mixed_types, [(5,)], [0]),
]


def _inputs(shapes: list[tuple[int, ...]], differentiable: list[int]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(s, generator=generator).requires_grad_(i in differentiable) for i, s in enumerate(shapes)]


@pytest.mark.parametrize(
    ("function", "shapes", "differentiable"), _COMPILED, ids=[function.__name__ for function, _, _ in _COMPILED]
)
def test_it_does_what_eager_does(
    tour: SimpleNamespace, function: Callable[..., Any], shapes: list[tuple[int, ...]], differentiable: list[int]
) -> None:
    tour.check(function, _inputs(shapes, differentiable))


# --- functions that it refuses ----------------------------------------------------------------------------------------

_OUTSIDE = torch.ones(3)


def _redrawn(x: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = torch.utils.checkpoint.checkpoint(lambda y: F.dropout(y.sin()), x, use_reentrant=False)
    return result


def _other_data(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    y.data = x * 2
    return y * 1


def _seeded(x: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(0)
    return x + 1


_REFUSED: list[tuple[str, Callable[..., Any], str]] = [
    ("number", lambda x: x * x.sum().item(), "depends on numbers"),
    ("data-dependent shape", lambda x: x[x > 0], "depends on numbers"),
    ("outside", lambda x: x + _OUTSIDE, "a tensor from outside"),
    ("returned input", lambda x: x.detach().mul_(2), "shares memory"),
    ("returned view", lambda x: x[1:], "shares memory"),
    ("not a tensor", lambda x: (x + 1, 3), "not a tensor"),
    ("leaf", lambda x: x.mul_(2) + 1, "leaves"),
    ("resize", lambda x: (x.detach() + 1).resize_(2), "in place"),
    ("list of writes", lambda x: torch._foreach_add_([x + 1], 1.0), "something else than its first argument"),
    ("running statistics", lambda x: F.batch_norm(x.expand(2, 3), x.detach(), x.detach(), training=True), "schema"),
    ("random numbers in a view", lambda x: (x + 1)[::2].bernoulli_(0.5) + 1, "random numbers written to a view"),
    ("random numbers in backward", _redrawn, "random numbers in backward"),
    ("backward inside", lambda x: (x.sum().backward(), x + 1)[1], "given a gradient"),
    ("data", _other_data, "another storage"),
    ("seed", _seeded, "sets the state of the random generator"),
]


@pytest.mark.parametrize(("function", "reason"), [case[1:] for case in _REFUSED], ids=[case[0] for case in _REFUSED])
def test_it_says_what_it_cannot_do(tour: SimpleNamespace, function: Callable[..., Any], reason: str) -> None:
    with pytest.raises(tour.NotInTheToy, match=reason):
        tour.Compiled(function, _inputs([(3,)], [0]))


def test_it_refuses_calls_unlike_the_one_that_it_was_made_for(tour: SimpleNamespace) -> None:
    compiled = tour.Compiled(lambda x, y: x.mul_(2) + y, [torch.ones(4), torch.ones(4)])
    shared = torch.ones(4)
    with pytest.raises(tour.NotInTheToy, match="shares memory"):
        compiled(shared, shared[:])
    with pytest.raises(tour.NotInTheToy, match="unlike"):
        compiled(torch.ones(5), torch.ones(5))
    with pytest.raises(tour.NotInTheToy, match="shares memory"):
        tour.Compiled(lambda x, y: x.mul_(2) + y, [shared, shared])


def test_it_refuses_gradients_of_gradients(tour: SimpleNamespace) -> None:
    x = torch.ones(3, requires_grad=True)
    (y,) = tour.Compiled(lambda x: x.sin(), [x])(x)
    with pytest.raises(tour.NotInTheToy, match="gradient of a gradient"):
        torch.autograd.grad(y.sum(), x, create_graph=True)
