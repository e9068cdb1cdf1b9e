"""Code that asks whether two tensors are one (`p is model.bias`) is told what eager mode tells."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dovetail

CALLS = 12
Case = tuple[Callable[..., Any], Callable[[int], tuple[Any, ...]]]


class State:
    """Whose attributes a user sets."""

    def __init__(self, **held: Any) -> None:
        vars(self).update(held)


def _decayed_but_for_biases() -> Case:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def loss(x: Tensor) -> Tensor:
        weights = [p for group in optimizer.param_groups for p in group["params"] if p is not model.bias]
        return model(x).sum() + sum(p.square().sum() for p in weights)

    return loss, lambda n: (torch.ones(2, 4) * n,)


def _kept_by_name() -> Case:
    model, state = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), State()

    def function(x: Tensor) -> Tensor:
        y = model(x)
        for parameter in model.parameters():
            y = y + parameter.sum() * (2 if parameter is state.kept["weight"] else 1)
        return y

    def arguments(n: int) -> tuple[Any, ...]:
        state.kept = {"weight": model[n // 5 % 2].weight}
        return (torch.ones(2, 4),)

    return function, arguments


def _cached_for_an_argument() -> Case:
    state = State(x=None, y=None)

    def function(x: Tensor) -> Tensor:
        return state.y * 1 if state.x is x else x * 5

    def arguments(n: int) -> tuple[Any, ...]:
        x, state.y = torch.ones(3), torch.ones(3) * n
        state.x = x if n % 2 else torch.ones(3)
        return (x,)

    return function, arguments


def _the_same_one_later() -> Case:
    state = State(held=State(x=torch.ones(4), lock=threading.Lock()))

    def function(x: Tensor) -> Tensor:
        return x * (2 if state.held.x is x else 3)

    return function, lambda n: (state.held.x if n % 3 == 1 else torch.ones(4),)


def _in_other_containers() -> Case:
    model = nn.Linear(4, 4)
    tied, kept = OrderedDict(weight=model.weight), deque([model.bias])

    def function(x: Tensor) -> Tensor:
        y = model(x) * (2 if tied["weight"] is model.weight else 3)
        return y + sum(p.sum() for p in model.parameters() if all(p is not other for other in kept))

    def arguments(n: int) -> tuple[Any, ...]:
        if n == 6:
            kept[0] = model.weight
        return (torch.ones(2, 4) * n,)

    return function, arguments


def _in_a_list() -> Case:
    state = State(held=[])

    def function(x: Tensor) -> Tensor:
        return x * sum(2 if x is other else 1 for other in state.held)

    def arguments(n: int) -> tuple[Any, ...]:
        state.held = [torch.ones(4) for _ in range(3)]
        return (state.held[n % 3] if n % 4 else torch.ones(4),)

    return function, arguments


def _replaced_and_kept() -> Case:
    state = State(now=torch.ones(4), best=None, other={"x": torch.ones(4)})

    def function(x: Tensor) -> Tensor:
        return x * (2 if state.now is state.best else 3) + state.other["x"]

    def arguments(n: int) -> tuple[Any, ...]:
        state.now = torch.ones(4) * n
        state.other = {"x": state.now if n % 5 == 4 else torch.ones(4)}
        if n % 4 == 3:
            state.best = state.now
        return (torch.ones(4),)

    return function, arguments


CASES = [
    _decayed_but_for_biases,
    _kept_by_name,
    _cached_for_an_argument,
    _the_same_one_later,
    _in_a_list,
    _in_other_containers,
    _replaced_and_kept,
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__[1:])
def test_what_is_one_tensor(case: Callable[[], Case]) -> None:
    function, arguments = case()
    compiled = dovetail.compile(function, max_variants=12)
    for number in range(CALLS):
        given = arguments(number)
        assert torch.equal(compiled(*given), function(*given)), number
    assert compiled.stats.captures <= 7, compiled.stats
    assert not compiled.stats.eager_calls


def test_programs_prepared_and_analysed() -> None:
    model = nn.Linear(4, 4)
    held = [model.bias]

    def function(x: Tensor) -> Tensor:
        return model(x) * (2 if held[0] is model.bias else 3)

    compiled, x = dovetail.compile(function), torch.ones(2, 4)
    compiled.prepare(x)
    assert torch.equal(compiled(x), function(x))
    assert compiled.stats.captures == 1
    assert dovetail.analyse(function, x)


def test_weights_that_torchs_modules_hold_twice() -> None:
    model = nn.LSTM(4, 4)
    compiled, x = dovetail.compile(model), torch.ones(3, 2, 4)
    for _ in range(3):
        assert torch.equal(compiled(x)[0], model(x)[0])
    assert compiled.stats.captures == 1


def test_the_same_weight_behind_a_size_that_data_decide() -> None:
    model = nn.Linear(4, 4)
    held = [model.bias]

    def function(x: Tensor) -> Tensor:
        return model(x[x[:, 0] > 0]).sum() * (2 if held[0] is model.bias else 3)

    compiled = dovetail.compile(function)
    for number in range(4):
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(number))
        assert torch.equal(compiled(x), function(x))


class _Listed(nn.Module):
    """Holds its weights in a list as well, as recurrent layers do."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.ones(3)), nn.Parameter(torch.full((3,), 2.0))
        self.weights = [self.a, self.b]

    def forward(self, x: Tensor) -> Tensor:
        return sum((x * weight for weight in self.weights if weight is not self.b), x * self.b)


def test_weights_that_a_module_holds_twice() -> None:
    module, x = _Listed(), torch.tensor([1.0, 2.0, 3.0])
    compiled = dovetail.compile(module, max_variants=20)

    def expect_the_same(given: Tensor = x) -> None:
        for _ in range(4):  # the third of a kind is a quick call
            assert torch.equal(compiled(given), module(given))

    expect_the_same()
    expect_the_same(module.b)
    module.a = nn.Parameter(torch.full((3,), 5.0))
    expect_the_same()
    module.weights[0] = module.a
    expect_the_same()
    module.b = module.weights[0]
    expect_the_same()
    expect_the_same(module.a)
    module.weights = [nn.Parameter(torch.zeros(3)), module.b]
    expect_the_same()
