"""What autograd knows of tensors that a program closes over is as in eager mode, whatever was recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import dovetail
from dovetail.errors import DataDependentControlFlow, UnsupportedInputMutation


class State:
    """Whose attributes are tensors."""

    a: Tensor
    b: Tensor


Function = Callable[[State, Tensor], tuple[Tensor, ...]]


def _written(state: State, x: Tensor) -> tuple[Tensor, ...]:
    state.a.mul_(x)
    return (x * 2,)


def _written_and_returned(state: State, x: Tensor) -> tuple[Tensor, ...]:
    state.a.mul_(x)
    return x * 2, state.a * 1, state.a.view(2, 2)


def _view_before(state: State, x: Tensor) -> tuple[Tensor, ...]:
    view = state.a[:2]
    state.a.mul_(x)
    return x * 2, view


def _through_a_view(state: State, x: Tensor) -> tuple[Tensor, ...]:
    state.a[:2].mul_(x[:2])
    return x * 2, state.a


def _of_two(state: State, x: Tensor) -> tuple[Tensor, ...]:
    y = state.b * x
    state.a.add_(y)
    return y, state.a.view(2, 2)[0], state.a


def _saved(state: State, x: Tensor) -> tuple[Tensor, ...]:
    state.a.add_(1)
    return x * state.a, x + 1


def _only_read(state: State, x: Tensor) -> tuple[Tensor, ...]:
    return state.b * x.detach(), state.a * 3 * state.b


def _saved_with_a_history(state: State, x: Tensor) -> tuple[Tensor, ...]:
    state.a.mul_(x)
    return x * 2, state.a * x


def _in_a_region(state: State, x: Tensor) -> tuple[Tensor, ...]:
    def region(x: Tensor) -> Tensor:
        return (x * state.a).exp()

    return (checkpoint(region, x, use_reentrant=False) * state.b,)


FUNCTIONS: list[Function] = [
    _only_read,
    _in_a_region,
    _written,
    _written_and_returned,
    _view_before,
    _through_a_view,
    _of_two,
    _saved,
    _saved_with_a_history,
]
LOSSES: list[Callable[[tuple[Tensor, ...]], Tensor]] = [
    lambda results: results[0].sum(),
    lambda results: torch.stack([result.sum() for result in results]).sum(),
    lambda results: (results[-1] * results[-1]).sum(),
    lambda results: results[-1].flatten()[:1].sum() + results[0].square().sum(),
]


@pytest.mark.parametrize("history", ["none", "other tensors", "other tensors with a history"])
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__[1:])
def test_gradients_of_every_pattern(function: Function, history: str) -> None:
    def run(call: Callable[[State, Tensor], Any], state: State, loss: Any, number: int, weight: Tensor) -> list[Any]:
        generator = torch.Generator().manual_seed(number)
        x = torch.rand(4, generator=generator, requires_grad=True)
        if history != "none" or number == 0:
            old = torch.rand(4, generator=generator)
            state.a = old * weight if history.endswith("history") else old
        else:
            state.a.detach_()
        weight.grad = None
        results = call(state, x)
        tracked = [state.a.requires_grad, state.a.is_leaf, state.a._version]
        loss(results).backward(retain_graph=True)
        (state.a.sum() if state.a.requires_grad else x.sum()).backward()
        return [*(r.detach().clone() for r in results), x.grad, weight.grad, state.a.detach().clone(), tracked]

    mine, theirs, compiled = State(), State(), dovetail.compile(function)
    weights = [torch.arange(1.0, 5.0).requires_grad_() for _ in range(2)]
    mine.b, theirs.b = (torch.full((4,), 2.0, requires_grad=True) for _ in range(2))
    for number, loss in enumerate([*LOSSES, *LOSSES[::-1]]):
        ours = run(compiled, mine, loss, number, weights[0])
        for got, wanted in zip(ours, run(function, theirs, loss, number, weights[1]), strict=True):
            if isinstance(wanted, Tensor):
                assert type(got) is Tensor
                assert torch.equal(got, wanted), number
            else:
                assert got == wanted, number
        assert (mine.b.grad is None) == (theirs.b.grad is None)
        assert mine.b.grad is None or torch.equal(mine.b.grad, theirs.b.grad)  # type: ignore[arg-type]


def test_a_tensor_in_two_attributes() -> None:
    state = State()
    state.a = state.b = torch.arange(1.0, 5.0)
    x = torch.full((4,), 3.0, requires_grad=True)

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        state.b.mul_(x)
        return x * 1.5, state.a

    first, second = dovetail.compile(function)(x)
    assert second is state.a
    (first.sum() + second.sum()).backward()
    assert x.grad is not None
    assert torch.equal(x.grad, torch.arange(1.0, 5.0) + 1.5)


def test_a_recording_that_fails_leaves_no_history() -> None:
    state = State()
    weight = torch.ones(4, requires_grad=True)
    own, state.b = weight * 2, torch.ones(8)

    def function(x: Tensor) -> Tensor:
        state.a.mul_(x)
        state.b[:4].mul_(state.a.sum())
        return x if state.a.sum() > 0 else x * 2

    for given in (torch.ones(4), own):
        state.a, version, is_leaf = given, given._version, given.is_leaf
        with pytest.raises(DataDependentControlFlow):
            dovetail.compile(function)(torch.ones(4, requires_grad=True))
        assert (given._version, given.is_leaf) == (version, is_leaf)
        assert (state.b._version, state.b.requires_grad) == (0, False)
    state.a.sum().backward()
    assert type(weight.grad) is Tensor
    assert torch.equal(weight.grad, torch.full((4,), 2.0))


def test_views_with_a_history_are_refused() -> None:
    view = (torch.ones(8, requires_grad=True) * 2)[:4]

    def function(x: Tensor) -> Tensor:
        view.mul_(x)
        return x + view

    with pytest.raises(UnsupportedInputMutation, match="a view of a tensor with a gradient history"):
        dovetail.compile(function)(torch.ones(4, requires_grad=True))


def test_detaching_what_has_a_history_is_refused() -> None:
    hidden = torch.ones(4, requires_grad=True) * 2

    def function(x: Tensor) -> Tensor:
        y = x * hidden
        hidden.detach_()
        return y

    with pytest.raises(UnsupportedInputMutation, match="detach_"):
        dovetail.compile(function)(torch.ones(4, requires_grad=True))
    assert not hidden.is_leaf


@pytest.mark.parametrize("holds_base", [True, False])
def test_views_without_a_history(holds_base: bool) -> None:
    mine, theirs = State(), State()

    def function(state: State, x: Tensor) -> Tensor:
        state.a.mul_(x)
        return state.a * 2 + (state.b[1::2] if holds_base else 0)

    compiled = dovetail.compile(function)
    for number in range(8):
        results = []
        for state, call in ((mine, compiled), (theirs, function)):
            x = torch.full((4,), 1.0 + number, requires_grad=number > 1)
            state.b = torch.arange(8.0)
            state.a = state.b[::2]
            result = call(state, x)
            if number > 1:
                (result.sum() + state.a.sum()).backward()
            results.append([result.detach(), x.grad, state.b.detach(), state.a.requires_grad])
        for got, wanted in zip(*results, strict=True):
            assert torch.equal(got, wanted) if isinstance(wanted, Tensor) else got == wanted, number


def test_gradients_that_reach_a_leaf_on_two_ways() -> None:
    leaf, called = torch.ones(2, requires_grad=True), list[type]()
    history = leaf * 2
    history.retain_grad()
    history.register_hook(lambda gradient: called.append(type(gradient)))
    compiled = dovetail.compile(lambda x: (x * leaf + history * 3).sum())
    compiled(torch.full((2,), 5.0)).backward()
    assert leaf.grad is not None
    assert history.grad is not None
    assert (leaf.grad.tolist(), history.grad.tolist(), called) == ([11.0, 11.0], [3.0, 3.0], [Tensor])


def test_state_that_is_handed_from_call_to_call() -> None:
    gradients = []
    for wrap in (dovetail.compile, lambda function: function):
        weight, state, total = torch.full((3,), 0.3, requires_grad=True), State(), torch.zeros(())
        state.a = torch.zeros(3)
        function = wrap(lambda x, weight=weight, state=state: torch.tanh(x * weight + state.a))
        for number in range(6):
            state.a = function(torch.ones(3) * number)
            total = total + state.a.sum()
        total.backward()
        gradients.append(weight.grad)
    assert torch.equal(*gradients)
