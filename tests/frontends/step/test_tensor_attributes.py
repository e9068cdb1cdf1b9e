"""Attributes that a step reads and sets on tensors: arguments, and tensors that change from call to call."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dovetail
from dovetail.errors import StateChangedOtherwise, UnsupportedStep


class _Batch:
    def __init__(self, x: Tensor) -> None:
        self.x = x


def _masked(x: Any) -> Tensor:
    if not hasattr(x, "mask"):
        x.mask = (x > 0).float()
    return (x * x.mask).sum()


def _counted(x: Any) -> Tensor:
    x.count = getattr(x, "count", 0) + 1
    return torch.as_tensor(x * x.count)


def _taken_away(x: Any) -> Tensor:
    if hasattr(x, "count"):
        del x.count
        return torch.as_tensor(x * 2)
    x.count = 1
    return torch.as_tensor(x * 3)


def _of_data(x: Any) -> Tensor:
    x.total = x.sum()
    return torch.as_tensor(x * x.total)


_ACTS = [_masked, _counted, _taken_away, _of_data]
_GIVEN: dict[str, Callable[[Tensor], Any]] = {
    "itself": lambda x: x,
    "list": lambda x: [x],
    "dictionary": lambda x: {"x": x},
    "object": _Batch,
}


def _found(given: Any) -> Any:
    if isinstance(given, _Batch):
        return given.x
    return given[0] if isinstance(given, list) else given["x"] if isinstance(given, dict) else given


def _run(step: Callable[[Any], Tensor], as_given: Callable[[Tensor], Any]) -> list[Any]:
    generator = torch.Generator().manual_seed(7)
    batches = [torch.randn(3, generator=generator) for _ in range(2)]
    found = []
    for number in range(9):
        batch = batches[number % 2]
        found.append((step(as_given(batch)).tolist(), _shown(batch)))
        if number == 6:
            vars(batch).clear()
    return found


def _shown(tensor: Tensor) -> list[Any]:
    return [(name, type(x), x.tolist() if isinstance(x, Tensor) else x) for name, x in vars(tensor).items()]


@pytest.mark.parametrize("act", _ACTS, ids=lambda act: act.__name__.strip("_"))
@pytest.mark.parametrize("given", _GIVEN)
@pytest.mark.filterwarnings("ignore::dovetail.DovetailWarning")
def test_attributes_of_arguments(given: str, act: Callable[[Any], Tensor]) -> None:
    def step(x: Any) -> Tensor:
        return act(_found(x))

    expected = _run(step, _GIVEN[given])
    assert _run(dovetail.compile_step(step, on_unsupported="eager"), _GIVEN[given]) == expected


@pytest.mark.parametrize("act", _ACTS, ids=lambda act: act.__name__.strip("_"))
@pytest.mark.filterwarnings("ignore::dovetail.DovetailWarning")
def test_attributes_of_a_tensor_that_is_replaced(act: Callable[[Any], Tensor]) -> None:
    trainer = SimpleNamespace(batch=torch.zeros(3))

    def step() -> Tensor:
        return act(trainer.batch)

    def put(x: Tensor) -> None:
        trainer.batch = x

    expected = _run(lambda _: step(), put)
    compiled = dovetail.compile_step(step, on_unsupported="eager")
    assert _run(lambda _: compiled(), put) == expected


@pytest.mark.parametrize("act", _ACTS, ids=lambda act: act.__name__.strip("_"))
def test_attributes_of_a_weight(act: Callable[[Any], Tensor]) -> None:
    def run(compiled: bool) -> list[Any]:
        torch.manual_seed(0)
        net = nn.Linear(3, 2)

        def step() -> Tensor:
            with torch.no_grad():
                return act(net.weight)

        called = dovetail.compile_step(step) if compiled else step
        return [(called().tolist(), _shown(net.weight)) for _ in range(6)]

    assert run(compiled=True) == run(compiled=False)


def test_an_attribute_of_an_argument_in_each_call_is_refused() -> None:
    compiled = dovetail.compile_step(_counted)
    x = torch.ones(2)

    def call_often() -> None:
        for number in range(20):
            assert compiled(x).tolist() == [number + 1.0] * 2

    with pytest.raises(StateChangedOtherwise, match="'count' of argument 0"):
        call_often()
    count = vars(x)["count"]
    assert type(count) is int
    assert _counted(x).tolist() == [count + 1.0] * 2


def test_an_attribute_that_an_argument_has_already() -> None:
    def step(x: Any) -> Tensor:
        x.count = 1
        return torch.as_tensor(x * 2)

    compiled = dovetail.compile_step(step)
    for _ in range(3):
        x: Any = torch.ones(2)
        x.count = 1
        compiled(x)
    assert compiled.stats.captures == 1
    other = torch.ones(2)
    compiled(other)
    assert vars(other) == {"count": 1}


def test_an_attribute_of_a_result_is_refused() -> None:
    def step(x: Tensor) -> Any:
        made: Any = x * 2
        made.count = 3
        return made

    x = torch.ones(2)
    with pytest.raises(UnsupportedStep, match="the attribute 'count'"):
        _called_twice(dovetail.compile_step(step), x)
    result = dovetail.compile_step(step, on_unsupported="eager")(x)
    assert vars(result) == {"count": 3}


def _called_twice(step: Callable[[Tensor], Any], x: Tensor) -> None:
    step(x)
    step(x)


def test_attributes_of_results_that_were_there() -> None:
    weight: Any = nn.Parameter(torch.ones(2))
    weight.count = 3
    x: Any = torch.ones(2)
    x.count = 4
    step = dovetail.compile_step(lambda x: (x, weight, x * weight))
    for _ in range(3):
        given, held, made = step(x)
        assert (given.count, held.count, vars(made)) == (4, 3, {})
    assert step.stats.captures == 1
