"""`freeze(..., measure=True)`: both sides are called in turn, and what takes longer is told."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import dovetail
from dovetail.errors import BadOptionValue, SlowerThanEager
from dovetail.frontends.freezing.examples import examples_of
from dovetail.frontends.freezing.timing import LEAST_PAIRS, MOST_PAIRS, time_methods


class _Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 2)
        self.calls: list[str] = []

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        self.calls.append("eager")
        return self.layer(x) * scale

    def twice(self, *, rows: torch.Tensor) -> torch.Tensor:
        return self.layer(rows) * 2


class _Clock:
    """A clock that says what calls of each side took."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self.now = 0.0
        self.seconds = seconds

    def __call__(self) -> float:
        return self.now

    def takes(self, module: torch.nn.Module, side: str) -> None:
        def passed(*_: Any) -> None:
            self.now += self.seconds[side]

        module.register_forward_hook(passed)


def _timed(seconds: dict[str, float]) -> tuple[dict[str, Any], list[Any]]:
    model, clock = _Net().eval(), _Clock(seconds)
    example = (torch.ones(4, 3), 0.5)
    frozen = dovetail.freeze(model, example, on_stale="ignore")
    clock.takes(frozen, "frozen")
    clock.takes(model, "eager")
    examples = examples_of(model, example, type(frozen))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        return time_methods(model, frozen, frozen._methods, examples, clock), told


def test_a_ratio_without_a_warning() -> None:
    found, told = _timed({"frozen": 0.001, "eager": 0.004})
    assert found["forward"].median == pytest.approx(0.25)
    assert found["forward"].pairs == MOST_PAIRS
    assert not told


def test_what_takes_longer_is_told() -> None:
    found, told = _timed({"frozen": 0.3, "eager": 0.2})
    assert found["forward"].median == pytest.approx(1.5)
    assert found["forward"].pairs == LEAST_PAIRS
    assert [warning.category for warning in told] == [SlowerThanEager]
    assert "frozen forward takes 1.50x eager's time (1.50 to 1.50, 9 pairs)" in str(told[0].message)


@pytest.fixture
def no_warning() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SlowerThanEager)
        yield


@pytest.mark.usefixtures("no_warning")
def test_every_method_is_measured_when_asked_for() -> None:
    model, rows = _Net().eval(), torch.ones(4, 3)
    before = torch.get_rng_state()
    frozen = dovetail.freeze(model, {"forward": ((rows,), {}), "twice": ((), {"rows": rows})}, measure=True)
    assert torch.equal(before, torch.get_rng_state())
    assert list(frozen.timings) == ["forward", "twice"]
    assert all(0 < ratio.low <= ratio.median <= ratio.high < math.inf for ratio in frozen.timings.values())
    assert "forward: " in repr(frozen)
    assert "x eager's time (" in repr(frozen)
    assert torch.equal(frozen(rows), model(rows))


def test_the_model_is_not_called_unless_asked() -> None:
    model = _Net().eval()
    frozen = dovetail.freeze(model, (torch.ones(4, 3),), dynamic_shapes="static")
    assert len(model.calls) <= 1
    assert not frozen.timings


@pytest.mark.usefixtures("no_warning")
def test_what_writes_state_is_left_out() -> None:
    model = torch.nn.BatchNorm1d(3).train()
    frozen = dovetail.freeze(model, (torch.ones(4, 3),), measure=True)
    assert not frozen.timings
    assert int(model.num_batches_tracked) == 0


def test_refusals() -> None:
    with pytest.raises(BadOptionValue, match="the original cannot run once its parameters are discarded"):
        dovetail.freeze(_Net().eval(), (torch.ones(4, 3),), measure=True, discard_originals=True)
    with pytest.raises(BadOptionValue, match="measure"):
        dovetail.freeze(_Net().eval(), (torch.ones(4, 3),), measure="yes")  # type: ignore[arg-type]
