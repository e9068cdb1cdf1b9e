"""What functions hold as defaults, met while a step is recorded: it is compared in each call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dovetail
from dovetail.frontends.step.capture import StepCapture

Case = tuple[Callable[[Tensor], Tensor], Callable[[], object]]  # what a model calls, and what changes a default of it

_TABLE: dict[str, Callable[[Tensor], Tensor]] = {}


def _scale(x: Tensor, k: float = 1.0) -> Tensor:
    return x * k


def _an_attribute() -> Case:
    def other() -> None: ...

    other.factor = 1.0  # type: ignore[attr-defined]

    def called(x: Tensor, by: Any = other) -> Tensor:
        return x * by.factor  # type: ignore[no-any-return]

    return called, lambda: setattr(other, "factor", 3.0)


def _an_attribute_that_is_not_there() -> Case:
    def other() -> None: ...

    def called(x: Tensor, by: Any = other) -> Tensor:
        return x * (3.0 if hasattr(by, "factor") else 1.0)

    return called, lambda: setattr(other, "factor", 3.0)


def _a_list() -> Case:
    box = [1.0]

    def called(x: Tensor, by: Any = box) -> Tensor:
        return x * by[0]  # type: ignore[no-any-return]

    return called, lambda: box.__setitem__(0, 3.0)


def _a_list_within() -> Case:
    box = {"a": [1.0]}

    def called(x: Tensor, *, by: Any = (_scale, box)) -> Tensor:
        return x * by[1]["a"][0]  # type: ignore[no-any-return]

    return called, lambda: box["a"].__setitem__(0, 3.0)


def _defaults_of_a_function_that_runs() -> Case:
    def other(x: Tensor, k: float = 1.0) -> Tensor:
        return x * k

    def called(x: Tensor, by: Any = other) -> Tensor:
        return by(x)  # type: ignore[no-any-return]

    return called, lambda: setattr(other, "__defaults__", (3.0,))


def _defaults_of_a_function_that_does_not() -> Case:
    def other(x: Tensor, k: float = 1.0) -> Tensor:
        return x * k

    def called(x: Tensor, by: Any = other) -> Tensor:
        return x * by.__defaults__[0]  # type: ignore[no-any-return]

    return called, lambda: setattr(other, "__defaults__", (3.0,))


class _Net(nn.Module):
    """The table shows no name of the function, and is read after the first weight."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return _TABLE["called"](self.linear(x))


def _losses(case: Callable[[], Case], wrap: Callable[..., Any]) -> list[float]:
    _TABLE["called"], change = case()
    torch.manual_seed(0)
    net = _Net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    called, found = wrap(step), []
    for number in range(5):
        if number == 3:
            change()
        found.append(called(torch.ones(2, 3)).item())
    return found


@pytest.mark.parametrize(
    "case",
    [
        _an_attribute,
        _an_attribute_that_is_not_there,
        _a_list,
        _a_list_within,
        _defaults_of_a_function_that_runs,
        _defaults_of_a_function_that_does_not,
    ],
)
def test_a_change_is_noticed(case: Callable[[], Case]) -> None:
    assert _losses(case, dovetail.compile_step) == _losses(case, lambda step: step)


def test_a_step_is_recorded_once_for_its_state_and_once_for_later_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded, variant = [], StepCapture.variant

    def counted(self: StepCapture, *args: Any, **options: Any) -> Any:
        found = variant(self, *args, **options)
        recorded.append(found[0] is not None)
        return found

    monkeypatch.setattr(StepCapture, "variant", counted)
    attempts = []
    original = StepCapture._recorded
    monkeypatch.setattr(StepCapture, "_recorded", lambda self, *a: attempts.append(1) or original(self, *a))  # type: ignore[func-returns-value]

    def without_change() -> Case:
        return (lambda x, by=_scale: x * 2 if by is _scale else x), lambda: None

    _losses(without_change, dovetail.compile_step)
    assert recorded == [False, True]  # one that makes state, one for later calls
    assert len(attempts) == 3  # and one that ended at the first weight
