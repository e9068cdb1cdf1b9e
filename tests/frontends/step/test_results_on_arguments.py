"""Results of a step that lie on the memory of an argument, which the step may write: whoever writes one writes both."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import dovetail

Body = Callable[[Tensor, Tensor, Any], Any]


def _kept(x: Tensor, n: Tensor, world: Any) -> Tensor:
    world.last = x[1:].detach()
    x.mul_(2)
    return x * n


BODIES: dict[str, Body] = {
    "a slice, then a write": lambda x, n, _: (x[:2], x.mul_(1.5))[0],
    "a write, then a slice": lambda x, n, _: (x.mul_(1.5), x[:2])[1],
    "a write to a part": lambda x, n, _: (x[:, 1].add_(n), x.t())[1],
    "detached": lambda x, n, _: (x.add_(n), x.detach())[1],
    "the argument too": lambda x, n, _: (x.add_(n), [x, x[0], x.view(-1)])[1],
    "one view twice": lambda x, n, _: (x.add_(n), [y := x[0], y])[1],
    "cut by data": lambda x, n, _: (x.mul_(2), x[: n.item()])[1],
    "cut by data, before": lambda x, n, _: (x[n.item() :].t(), x.mul_(2))[0],
    "read only": lambda x, n, _: [x[: n.item()], x[1:]],
    "kept in Python": _kept,
    "a leaf": lambda x, n, _: (x.add_(n), x.detach()[1:].requires_grad_())[1],
}


@pytest.mark.parametrize("name", BODIES)
def test_writes_to_results_reach_the_argument(name: str) -> None:
    seen = []
    for compiles in (False, True):
        world = SimpleNamespace(last=torch.zeros(()))

        def step(x: Tensor, n: Tensor, world: Any = world) -> Any:
            return BODIES[name](x, n, world)

        run = dovetail.compile_step(step) if compiles else step
        found: list[Any] = []
        for number in range(5):
            x = torch.randn(4, 6, generator=torch.Generator().manual_seed(number))
            results = run(x, torch.tensor(2 + number % 2))
            results = results if isinstance(results, list) else [results]
            for result in (*results, world.last):
                with torch.no_grad():
                    result.add_(1)
                found += [result.tolist(), x.tolist(), result.requires_grad, result.stride()]
            found.append([a is b for a in results for b in results])
        seen.append(found)
    assert seen[0] == seen[1]


WEIGHT = torch.ones(6, requires_grad=True)
SHARING: dict[str, Callable[[Tensor], list[Tensor]]] = {
    "detached first": lambda x: [(y := x * WEIGHT).t().detach(), y],
    "detached last": lambda x: [(y := x * WEIGHT), y.detach(), y[0]],
    "a leaf": lambda x: [(y := x * 2)[0], y.detach().requires_grad_(), y.t()],
}


@pytest.mark.parametrize("name", SHARING)
def test_a_write_to_a_result_gives_no_other_result_a_graph(name: str) -> None:
    seen = []
    for run in (SHARING[name], dovetail.compile_step(SHARING[name])):
        found: list[Any] = []
        for _ in range(3):
            results = run(torch.randn(4, 6, generator=torch.Generator().manual_seed(0)))
            with torch.no_grad():
                for result in results:
                    result.add_(1)
            found += [(result.tolist(), result.requires_grad, result.is_leaf) for result in results]
        seen.append(found)
    assert seen[0] == seen[1]


@pytest.mark.parametrize(
    "body",
    [lambda x: (x * COMPLEX).conj(), lambda x: (x * COMPLEX).conj().imag, lambda x: (x * COMPLEX).imag],
    ids=["conjugate", "negative", "part"],
)
def test_complex_results_of_a_graph(body: Callable[[Tensor], Tensor]) -> None:
    """The conjugate was handed out without its bit: other numbers than eager mode's."""
    call = dovetail.compile_step(body)
    for seed in range(3):
        x = torch.randn(3, dtype=torch.complex64, generator=torch.Generator().manual_seed(seed))
        found, expected = call(x), body(x)
        assert torch.equal(found, expected)
        assert (found.is_conj(), found.is_neg()) == (expected.is_conj(), expected.is_neg())


COMPLEX = torch.ones(3, dtype=torch.complex64, requires_grad=True)
