"""Calls that share memory alike and differ otherwise: none is taken for another."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dovetail
from dovetail.errors import OverlappingMutatedInputs

pytestmark = pytest.mark.usefixtures("alone")


class Cache(nn.Module):
    """A cache of which a view is a buffer, too."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kv", torch.zeros(8, 2))
        self.register_buffer("values", self.kv[:, 1:])

    def forward(self, new: Tensor, position: int) -> Tensor:
        self.kv[position] = new
        return self.values[: position + 1].sum()


@pytest.mark.parametrize("compile_module", [dovetail.compile, lambda m: torch.compile(m, backend="dovetail")])
def test_a_number_that_changes(compile_module: Callable[[nn.Module], Any]) -> None:
    theirs, mine = Cache(), Cache()
    compiled = compile_module(mine)
    for position in range(6):
        new = torch.full((2,), position + 1.0)
        assert torch.equal(compiled(new, position), theirs(new, position))
        assert torch.equal(mine.kv, theirs.kv)


def test_a_float_that_changes() -> None:
    def f(x: Tensor, y: Tensor, scale: float) -> Tensor:
        x.mul_(scale)
        return y + scale

    compiled = torch.compile(f, backend="dovetail")

    def check(scale: float) -> None:
        mine, theirs = torch.ones(4), torch.ones(4)
        assert torch.equal(compiled(mine[:3], mine[1:], scale), f(theirs[:3], theirs[1:], scale))
        assert torch.equal(mine, theirs)

    check(0.5)  # Dynamo takes the first float for a constant
    with pytest.warns(dovetail.DovetailWarning, match="a float argument for instance"):
        check(0.25)
    check(2.0)


@pytest.mark.parametrize("kinds", [("data", "detach"), ("detach", "data")])
def test_who_counts_versions_together(kinds: tuple[str, str]) -> None:
    def f(x: Tensor, d: Tensor, w: Tensor) -> Tensor:
        result = x * w
        d.mul_(2)
        return result

    def gradient(call: Callable[..., Tensor], kind: str) -> object:
        x, w = torch.ones(3), torch.ones(3, requires_grad=True)
        result = call(x, x.detach() if kind == "detach" else x.data, w)
        try:
            return torch.autograd.grad(result.sum(), w)[0].tolist()
        except RuntimeError:
            return "raises"

    compiled = dovetail.compile(f)
    assert [gradient(compiled, kind) for kind in kinds] == [gradient(f, kind) for kind in kinds]


def test_hooks_and_gradients_of_views_that_nobody_writes_under_autograd() -> None:
    def f(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        z.mul_(2)
        return (x + y).sum()

    def gradients(call: Callable[..., Tensor]) -> list[Tensor]:
        leaf = torch.ones(4, requires_grad=True)
        base = leaf * 1
        x, y = base[:2], base[1:3]
        x.register_hook(lambda g: 10 * g)
        return list(torch.autograd.grad(call(x, y, base.data[:2]), [leaf, x, y]))

    for mine, theirs in zip(gradients(dovetail.compile(f)), gradients(f), strict=True):
        assert torch.equal(mine, theirs)


def test_conjugate_views_in_shared_memory_are_refused() -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        x.mul_(2)
        return y + 1

    base = torch.tensor([1 + 1j, 2 + 2j, 3 + 3j])
    compiled = dovetail.compile(f)
    compiled(base.clone()[:2], torch.zeros(2, dtype=torch.complex64))
    with pytest.raises(OverlappingMutatedInputs, match="conjugate"):
        compiled(base.conj()[:2], base[1:])
    assert torch.equal(base, torch.tensor([1 + 1j, 2 + 2j, 3 + 3j]))


class Statistics(torch.autograd.Function):
    """The identity, which adds the gradient that arrives to a buffer."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, seen: Tensor) -> Tensor:
        ctx.seen = seen
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        ctx.seen.add_(grads[0])
        return grads[0], None


def test_a_buffer_that_backward_writes_is_read_as_it_is_then() -> None:
    compiled = dovetail.compile(lambda x, seen: Statistics.apply(x, seen).sum())
    x, seen = torch.ones(3, requires_grad=True), torch.zeros(3)
    (compiled(x, seen) + compiled(x, seen)).backward()
    assert torch.equal(seen, torch.full((3,), 2.0))
    seen.zero_()
    compiled(x, seen).backward()
    assert torch.equal(seen, torch.ones(3))


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # Dynamo does
@pytest.mark.parametrize("compile_function", [dovetail.compile, lambda f: torch.compile(f, backend="dovetail")])
def test_a_buffer_that_only_backward_writes_shares_memory(compile_function: Callable[[Any], Any]) -> None:
    def f(x: Tensor, seen: Tensor, y: Tensor) -> Tensor:
        return Statistics.apply(x, seen) * y

    compiled = compile_function(f)
    for place in (4, 1, 4):
        results = []
        for call in (compiled, f):
            memory, x = torch.arange(8.0), torch.ones(3, requires_grad=True)
            call(x, memory[:3], memory[place : place + 3]).sum().backward()
            results.append((memory, x.grad))
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(*results, strict=True))


def test_what_a_function_closes_over() -> None:
    weight, held = torch.ones(2), [torch.ones(2)]
    compiled = dovetail.compile(lambda x: x * weight + held[0])
    assert not compiled(torch.ones(2)).requires_grad
    weight.requires_grad_()
    assert compiled(torch.ones(2)).requires_grad
    held[0] = torch.zeros(2)
    assert torch.equal(compiled(torch.ones(2)), torch.ones(2))


def test_a_shallow_copy() -> None:
    compiled = copy.copy(dovetail.compile(lambda x: x + 1))
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))


def test_what_eager_mode_refuses_where_inputs_share_memory_it_refuses_in_later_calls() -> None:
    """It was an error of dovetail's, about a recording, where a call had come before in which they do not."""

    def function(table: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
        return table[1:3].mul_(row)

    compiled, memory = dovetail.compile(function), torch.randn(6, 4)
    compiled(torch.randn(4, 4), torch.randn(4))
    for _ in range(2):
        before = memory.clone()
        with pytest.raises(RuntimeError, match="single memory location"):
            compiled(memory[:4], memory[2])
        assert torch.equal(memory, before)
    given = memory[4].clone(), memory[:4].clone()
    assert torch.equal(compiled(memory[:4], memory[4]), function(given[1], given[0]))
