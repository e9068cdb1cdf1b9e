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
    for line in (
        "mul__3 = aten.mul_.Tensor(select_2, 2)",
        "select_scatter_4 = aten.select_scatter.default(mm_1, mul_3, 0, 0)",
        "[[primal_0, primal_1, primal_2], [tangent_0]] = args",
        "5. Simplified: 47 nodes -> 46",
        "6. Keep all: 163840 bytes",
        "6. Keep or recompute: 65536 bytes",
        "7. Peak, known before it runs: 294916 bytes. Recomputing: 262148 bytes.",
        "    del select_scatter_4",
        "9. Bit by bit the same as eager. Peak, measured: 262148 bytes, as promised. Eager: 294916 bytes.",
        "10. As a backend of torch.compile: the same once more.",
    ):
        assert line in tour.printed, line


def test_it_is_short_and_names_modules_that_exist() -> None:
    source = (_DOCS / "tour.py").read_text(encoding="utf-8")
    assert source.count("\n") <= 380
    named = re.findall(r"src/dovetail/[\w/.]*\w|(?:ops|ir)/\w+\.py", source)
    assert len(named) > 10
    root = _DOCS.parent / "src" / "dovetail"
    assert [name for name in named if not (root / name.removeprefix("src/dovetail/")).exists()] == []


# --- functions that it compiles as they are in eager ------------------------------------------------------------------


def _mlp(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.gelu(F.linear(x, weight, bias))


def _attention(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return F.dropout((q @ k.transpose(1, 2)).softmax(-1), 0.1) @ k


def _views(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    h = x @ weight
    a, b = h[:, :4], h[:, 4:]
    a.mul_(2)
    b.add_(a)
    h.t()[1].zero_()
    return h.sum(1), (a * b).tanh()


def _view_of_written(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    h = x * y
    t = h.transpose(0, 1)
    h[0].mul_(3)
    return t


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
    torch.rand_like(x)  # nobody reads it, but it moves the generator
    return x * torch.randn_like(x)


def _chain(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    for _ in range(4):
        y = y + y.sin() * x
    return y


def _several(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return x.exp(), x.sin().detach(), x.argmax()


_COMPILED: list[tuple[Callable[..., Any], list[tuple[int, ...]], list[int]]] = [
    (_mlp, [(4, 8), (16, 8), (16,)], [1, 2]),
    (_attention, [(2, 5, 8), (2, 5, 8)], [0, 1]),
    (_views, [(3, 5), (5, 8)], [1]),
    (_view_of_written, [(3, 3), (3, 3)], [1]),
    (_cache, [(5, 3), (2, 3)], []),
    (_write_before_recompute, [(5,), (5,)], [1]),
    (_untracked_write, [(3, 3), (2, 3)], [0]),
    (_noise, [(4, 4)], [0]),
    (_chain, [(6,)], [0]),
    (_several, [(4,)], [0]),
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


_REFUSED: list[tuple[str, Callable[..., Any], str]] = [
    ("outside", lambda x: x + _OUTSIDE, "a tensor from outside"),
    ("unknown write", lambda x: (x + 1).exp_(), "an operator that writes"),
    ("unknown view", lambda x: (x + 1).view(3, 1).mul_(2) + 1, "a write through aten.view"),
    ("several results", lambda x: x.max(0).values + 1, "not one tensor"),
    ("returned input", lambda x: x.detach().mul_(2), "shares memory"),
    ("shared outputs", lambda x: [y := x + 1, y[1:]], "shares memory"),
    ("other dtype", lambda x: x.detach().bfloat16().add_(x.detach()) + 1, "another layout or dtype"),
    ("random numbers in a view", lambda x: (x + 1)[::2].bernoulli_(0.5) + 1, "random numbers written to a view"),
    ("random numbers in backward", _redrawn, "random numbers in backward"),
    ("backward inside", lambda x: (x.sum().backward(), x + 1)[1], "gets a .grad"),
]


@pytest.mark.parametrize(("function", "reason"), [case[1:] for case in _REFUSED], ids=[case[0] for case in _REFUSED])
def test_it_says_what_it_cannot_do(tour: SimpleNamespace, function: Callable[..., Any], reason: str) -> None:
    with pytest.raises(NotImplementedError, match=reason):
        tour.toy_compile(function, _inputs([(3,)], [0]))


def test_it_refuses_calls_unlike_the_one_that_it_was_made_for(tour: SimpleNamespace) -> None:
    compiled, _ = tour.toy_compile(lambda x, y: x.mul_(2) + y, [torch.ones(4), torch.ones(4)])
    shared = torch.ones(8)
    for inputs in ((shared[:4], shared[:4]), (torch.ones(5), torch.ones(5)), (torch.ones(4), shared[4:])):
        with pytest.raises(NotImplementedError, match="inputs unlike those"):
            compiled(*inputs)
    with pytest.raises(NotImplementedError, match="not contiguous"):
        tour.toy_compile(lambda x: x + 1, [torch.ones(2, 3).t()])


def test_it_refuses_other_gradients(tour: SimpleNamespace) -> None:
    x = torch.ones(3, requires_grad=True)
    y, z = tour.toy_compile(lambda x: (x.sin(), x.exp()), [x])[0](x)
    with pytest.raises(NotImplementedError, match="some outputs only"):
        torch.autograd.grad(y.sum(), x, retain_graph=True)
    (once,) = torch.autograd.grad((y * z).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        once.sum().backward()
