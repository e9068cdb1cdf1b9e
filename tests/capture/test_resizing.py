"""Tensors that get other memory, or another size, in a function or a step: `out=`, `resize_`, `set_`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import dovetail
from dovetail.errors import UnsupportedInputMutation
from tests.rotation import rotated

Function = Callable[[Tensor, Tensor], Any]


def _after(z: Tensor, change: Callable[[Tensor], Any]) -> Tensor:
    change(z)
    return z


def _sorted(x: Tensor, y: Tensor) -> Any:
    values, places = torch.empty(0), torch.empty(0, dtype=torch.long)
    torch.sort(x, 0, out=(values, places))
    torch.topk(y, 2, out=(values, places))
    return values, places


def _filled_twice(x: Tensor, y: Tensor) -> Any:
    z = torch.empty(2)
    torch.add(x, 1, out=z)
    part = z[0]
    torch.mul(part, y[0], out=part)
    z.t_()
    return z, z[1], torch.add(z, 1, out=torch.empty(0))


def _grown(x: Tensor, y: Tensor) -> Any:
    z = x.clone()
    z.resize_(5, 3)
    z[4] = y[0]
    return z


def _shrunk_beside_a_view(x: Tensor, y: Tensor) -> Any:
    z = x.clone()
    view = z[0]
    z.resize_(2, 3)
    view.add_(1)
    return z, view, z.untyped_storage().nbytes()


def _set_to_another(x: Tensor, y: Tensor) -> Any:
    z, other = torch.empty(0), x.clone()
    z.set_(other)
    z.add_(1)
    return z, other


def _set_to_a_storage(x: Tensor, y: Tensor) -> Any:
    z, other = torch.empty(0), x.clone()
    z.set_(other.untyped_storage(), 3, (3, 2), (1, 3))
    z.mul_(2)
    return other, z.detach() + 1


def _freed_and_filled_again(x: Tensor, y: Tensor) -> Any:
    z = torch.empty_like(x)
    z.untyped_storage().resize_(0)
    z.untyped_storage().resize_(x.numel() * 4)
    torch.add(x, y, out=z)
    made = z * 2
    z.untyped_storage().resize_(0)
    return made


MOVED: tuple[Function, ...] = (
    lambda x, y: torch.add(x, 1, out=torch.empty(0)),
    lambda x, y: _after(torch.empty(0), lambda z: torch.mm(x, y.t(), out=z)) * 2,
    lambda x, y: _after(torch.empty(0), lambda z: torch.add(x.t(), y.t(), out=z)),
    lambda x, y: _after(torch.empty(0), lambda z: torch.exp(x[:, ::2], out=z)),
    lambda x, y: _after(torch.empty(0), lambda z: torch.cat([x, y], out=z)).mul_(2),
    lambda x, y: _after(torch.empty(0, dtype=torch.float64), lambda z: torch.add(x, 1, out=z)),
    lambda x, y: _after(torch.empty(0), lambda z: torch.add(x[0], torch.add(x, 1, out=z)[1], out=torch.empty(7))),
    lambda x, y: _after(torch.empty(0), lambda z: torch.arange(5, out=z)) + x[0, 0],
    lambda x, y: _after(x.clone(), lambda z: z.resize_(2, 3)),
    lambda x, y: _after(x.clone(), lambda z: z.resize_(6).add_(1)),
    lambda x, y: _after(x.clone()[1:], lambda z: z.resize_(2, 3).add_(1)),
    lambda x, y: _after(x.clone().t(), lambda z: z.resize_(4, 3)),
    lambda x, y: _after(torch.empty(0), lambda z: z.resize_as_(x).copy_(y)),
    lambda x, y: _after(x.clone(), lambda z: torch.add(x, y, out=z.resize_(0))),
    lambda x, y: _after(x.clone(), lambda z: z.set_()),
    _sorted,
    _filled_twice,
    _grown,
    _shrunk_beside_a_view,
    _set_to_another,
    _set_to_a_storage,
    _freed_and_filled_again,
)


def _same(actual: Any, expected: Any) -> None:
    pairs = zip(*(x if isinstance(x, tuple) else (x,) for x in (actual, expected)), strict=True)
    found = [(a, b) for a, b in pairs if isinstance(b, Tensor)]
    for a, b in found:
        assert (a.dtype, a.shape, a.stride(), a.storage_offset()) == (b.dtype, b.shape, b.stride(), b.storage_offset())
        assert torch.equal(a, b)
    for places in ((0, 1), (0, -1)):
        (a, b), (c, d) = (found[place] for place in (places if len(found) > 1 else (0, 0)))
        shares = [
            one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr() for one, other in ((a, c), (b, d))
        ]
        assert shares[0] == shares[1]


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("function", rotated(MOVED, 2))
def test_moved_tensors_in_a_function(function: Function) -> None:
    compiled = dovetail.compile(function, verify=2)
    for seed in range(2):
        torch.manual_seed(seed)
        x, y = torch.randn(4, 3), torch.randn(4, 3)
        _same(compiled(x.clone(), y.clone()), function(x.clone(), y.clone()))
    assert len(compiled.graphs) == 1


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("function", rotated(MOVED, 4))
def test_moved_tensors_in_a_step(function: Function) -> None:
    weights = [torch.ones(3, requires_grad=True) for _ in range(2)]

    def step(weight: Tensor, x: Tensor, y: Tensor) -> Any:
        made = function(x, y)
        first = made[0] if isinstance(made, tuple) else made
        (gradient,) = torch.autograd.grad((first.double().sum() * weight).sum(), weight)
        with torch.no_grad():
            weight.sub_(gradient * 0.1)
        return made

    compiled = dovetail.compile_step(lambda x, y: step(weights[1], x, y))
    for seed in range(3):
        torch.manual_seed(seed)
        x, y = torch.randn(4, 3), torch.randn(4, 3)
        _same(compiled(x.clone(), y.clone()), step(weights[0], x.clone(), y.clone()))
        assert torch.equal(*weights)


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: x.resize_(2, 3),
        lambda x, y: torch.add(y, 1, out=x.resize_(0)),
        lambda x, y: torch.add(y[0], 1, out=x),
        lambda x, y: x.set_(y.clone()),
        lambda x, y: x.untyped_storage().resize_(0),
        lambda x, y: _after(torch.empty(3), lambda z: torch.add(x, z, out=z)),
    ],
)
def test_memory_of_the_callers_is_refused_by_name(function: Function) -> None:
    x, y = torch.ones(4, 3), torch.ones(4, 3)
    with pytest.raises(UnsupportedInputMutation):
        dovetail.compile(function)(x, y)
    assert x.shape == (4, 3)
    assert torch.equal(x, y)


def test_a_view_of_memory_that_has_moved_is_refused() -> None:
    def function(x: Tensor) -> Any:
        z = x.clone()
        view = z[0]
        z.resize_(9, 3)
        return view + 1

    with pytest.raises(UnsupportedInputMutation, match="storage"):
        dovetail.compile(function)(torch.ones(4, 3))


def test_bytes_that_dynamo_frees_are_not_those_of_the_argument() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        z = x.clone()
        z.untyped_storage().resize_(0)
        z.untyped_storage().resize_(48)
        z.copy_(y)
        return z

    torch.compiler.reset()
    x, y = torch.ones(4, 3), torch.zeros(4, 3)
    assert torch.equal(torch.compile(function, backend="dovetail", fullgraph=True)(x, y), y)
    assert torch.equal(x, torch.ones(4, 3))
