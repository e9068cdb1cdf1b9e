"""How often the code of a step runs on fakes in its first calls, by where it drops its gradients.

Each recording costs as much as all that follows. A step that makes state is recorded as it is, and once more as later
calls find it; one that makes none is recorded once. What a recording that stops at the first weight costs is nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import Module
from torch.optim import Optimizer

import dovetail
from dovetail.capture.step_recording import StepRecording
from dovetail.errors.step import UnownedState

Step = Callable[[Module, Module, Optimizer, Optimizer, Tensor], Tensor]


class _Rig:
    def __init__(self, kind: type[Optimizer] = torch.optim.AdamW) -> None:
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
        self.other = nn.Linear(1, 1)
        self.optimizer = kind(self.net.parameters(), lr=0.1)
        self.second = kind(self.other.parameters(), lr=0.1)

    @property
    def held(self) -> tuple[Module, Module, Optimizer, Optimizer]:
        """What the step works with."""
        return self.net, self.other, self.optimizer, self.second

    @property
    def weights(self) -> list[nn.Parameter]:
        return [*self.net.parameters(), *self.other.parameters()]


def _at_the_end(net: Module, other: Module, optimizer: Optimizer, second: Optimizer, x: Tensor) -> Tensor:
    loss = net(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def _first(net: Module, other: Module, optimizer: Optimizer, second: Optimizer, x: Tensor) -> Tensor:
    optimizer.zero_grad()
    loss = net(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss.detach()


def _before_backward(net: Module, other: Module, optimizer: Optimizer, second: Optimizer, x: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    made = net(x)
    (slope,) = torch.autograd.grad(made.sum(), x, create_graph=True)
    optimizer.zero_grad()
    loss = (made + slope).square().mean()
    loss.backward()
    optimizer.step()
    return loss.detach()


def _one_after_the_other(net: Module, other: Module, optimizer: Optimizer, second: Optimizer, x: Tensor) -> Tensor:
    optimizer.zero_grad()
    loss = net(x).square().mean()
    loss.backward()
    optimizer.step()
    second.zero_grad()
    more = other(net(x).detach()).square().mean()
    more.backward()
    second.step()
    return loss.detach() + more.detach()


def _never(net: Module, other: Module, optimizer: Optimizer, second: Optimizer, x: Tensor) -> Tensor:
    loss = net(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss.detach()


def _in_parts(net: Module, other: Module, optimizer: Optimizer, second: Optimizer, x: Tensor) -> Tensor:
    for part in range(3):
        net(x + part).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    return x.sum()


def _between(net: Module, other: Module, optimizer: Optimizer, second: Optimizer, x: Tensor) -> Tensor:
    net(x).sum().backward()
    optimizer.zero_grad()
    return _at_the_end(net, other, optimizer, second, x)


def _asked_for(net: Module, other: Module, optimizer: Optimizer, second: Optimizer, x: Tensor) -> Tensor:
    had = sum(weight.grad is not None for weight in net.parameters())
    return _at_the_end(net, other, optimizer, second, x) + had


STEPS: list[tuple[Step, int]] = [
    (_at_the_end, 1),
    (_first, 1),
    (_before_backward, 1),
    (_one_after_the_other, 1),
    (_never, 2),
    (_in_parts, 1),
    (_between, 1),
    (_asked_for, 1),
]


@pytest.fixture
def recordings(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """A list that gets, for each recording which was not stopped at a weight, whether it was of use."""
    made: list[bool] = []
    run = StepRecording.run

    def noted(self: StepRecording, function: Callable[[], Any], around: AbstractContextManager[Any]) -> None:
        try:
            run(self, function, around)
        except UnownedState:
            raise
        except Exception:
            made.append(False)
            raise
        made.append(True)

    monkeypatch.setattr(StepRecording, "run", noted)
    return made


def _compared(step: Step, kind: type[Optimizer]) -> int:
    """Compare three calls with eager mode, bit by bit. Returns: how many programs there are."""
    eager, compiled = _Rig(kind), _Rig(kind)
    net, other, optimizer, second = compiled.held
    fast = dovetail.compile_step(lambda x: step(net, other, optimizer, second, x))
    for turn in range(3):
        torch.manual_seed(turn)
        x = torch.randn(5, 3)
        assert torch.equal(step(*eager.held, x), fast(x)), turn
        for one, twin in zip(eager.weights, compiled.weights, strict=True):
            assert torch.equal(one, twin), turn
            assert (one.grad is None) == (twin.grad is None), turn
            assert one.grad is None or torch.equal(one.grad, twin.grad), turn
    assert fast.stats.eager_calls == 0, fast.stats
    return fast.stats.captures


@pytest.mark.parametrize(("step", "programs"), STEPS, ids=lambda found: getattr(found, "__name__", None))
def test_a_step_without_state_is_recorded_once(step: Step, programs: int, recordings: list[bool]) -> None:
    assert _compared(step, torch.optim.SGD) == programs
    if step is not _asked_for:  # for that one, the first recording is of no use
        assert recordings == [True] * programs


@pytest.mark.parametrize("step", [_at_the_end, _first], ids=lambda step: step.__name__)
def test_a_step_with_state_is_recorded_twice(step: Step, recordings: list[bool]) -> None:
    _compared(step, torch.optim.AdamW)
    assert recordings == [True, True]
