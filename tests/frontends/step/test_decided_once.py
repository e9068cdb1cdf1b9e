"""What a first call decides and keeps, as models of transformers do the kind of their problem: later calls find it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim
from torch.nn import functional as F

import dovetail

OPTIMIZERS: dict[str, Callable[[Any], optim.Optimizer]] = {
    "SGD": lambda parameters: optim.SGD(parameters, lr=0.1),
    "momentum": lambda parameters: optim.SGD(parameters, lr=0.1, momentum=0.9),
    "AdamW": lambda parameters: optim.AdamW(parameters, lr=0.1),
}


class Training:
    """A net whose configuration says nothing of the problem at first."""

    def __init__(self, optimizer: str) -> None:
        torch.manual_seed(0)
        self.config = SimpleNamespace(problem=None, width=None, name=None)
        self.net = nn.Linear(3, 2)
        self.optimizer = OPTIMIZERS[optimizer](self.net.parameters())

    def decide(self, x: Tensor, y: Tensor) -> None:
        """What the first call keeps."""
        if self.config.problem is None:
            self.config.problem = "single" if y.dtype == torch.long else "many"

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        self.optimizer.zero_grad()
        self.decide(x, y)
        out = self.net(x)
        loss = F.cross_entropy(out, y) if self.config.problem == "single" else F.mse_loss(out[:, 0], y)
        if self.config.width is not None:
            loss = loss * self.config.width
        loss.backward()
        self.optimizer.step()
        return loss.detach()


class WithWidth(Training):
    """Keeps a number beside, which no call reads before it is there."""

    def decide(self, x: Tensor, y: Tensor) -> None:
        if self.config.problem is None:
            super().decide(x, y)
            self.config.width = x.shape[1]


class Renamed(Training):
    """Each call says something again."""

    def decide(self, x: Tensor, y: Tensor) -> None:
        super().decide(x, y)
        self.config.name = "a name"


class Undone(Training):
    """Each call takes it back."""

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        loss = super().step(x, y)
        self.config.problem = None
        return loss


class InTurns(Training):
    """Every second call takes it back."""

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        was = self.config.problem
        loss = super().step(x, y)
        if was is not None:
            self.config.problem = None
        return loss


def _trained(make: Callable[[str], Training], optimizer: str, compiled: bool) -> tuple[list[Any], Any]:
    training = make(optimizer)
    step: Any = dovetail.compile_step(training.step) if compiled else training.step
    found: list[Any] = []
    for number in range(6):
        kind = torch.long if number < 5 else torch.float32
        y = torch.tensor([0, 1, 1, 0], dtype=kind)
        if number == 5:
            training.config.problem = None
        found += [step(torch.full((4, 3), 1.0 + number), y).item(), vars(training.config).copy()]
    return [*found, training.net.weight.tolist()], step.stats if compiled else None


@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
@pytest.mark.parametrize("make", [Training, WithWidth, Renamed, Undone, InTurns])
def test_it_is_as_in_eager_mode(make: Callable[[str], Training], optimizer: str) -> None:
    assert _trained(make, optimizer, compiled=True)[0] == _trained(make, optimizer, compiled=False)[0]


@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
@pytest.mark.parametrize("make", [Training, WithWidth, Renamed])
def test_no_later_call_is_captured_because_of_it(make: Callable[[str], Training], optimizer: str) -> None:
    training = make(optimizer)
    step = dovetail.compile_step(training.step)
    captures = set()
    for _ in range(4):
        step(torch.ones(4, 3), torch.tensor([0, 1, 1, 0]))
        captures.add(step.stats.captures)
    assert len(captures) == 1
    assert all(variant.calls for variant in step.stats.variants)


def test_a_call_that_fails_decides_nothing() -> None:
    training = Training("AdamW")
    step = dovetail.compile_step(training.step)
    with pytest.raises(IndexError):
        step(torch.ones(4, 3), torch.tensor([0, 1, 7, 0]))
    eager = Training("AdamW")
    with pytest.raises(IndexError):
        eager.step(torch.ones(4, 3), torch.tensor([0, 1, 7, 0]))
    assert training.config == eager.config
    assert not training.optimizer.state
