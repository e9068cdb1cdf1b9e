"""Objects that several modules hold, a configuration say, have one path from the first full recording on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dovetail
from dovetail.frontends.step.capture import StepCapture


class _Config:
    def __init__(self) -> None:
        self.scale, self.options = 2.0, {"deep": True}


class _Inner(nn.Module):
    def __init__(self, config: _Config) -> None:
        super().__init__()
        self.config, self.linear = config, nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        scale = self.config.scale  # before the first weight is met
        return torch.Tensor.mul(self.linear(x), scale)


class _Net(nn.Module):
    """Reads the configuration after all weights, by a path that is shorter than the inner module's."""

    def __init__(self) -> None:
        self.config = _Config()  # it comes before the modules, and so does its path
        super().__init__()
        self.inner = _Inner(self.config)

    def forward(self, x: Tensor) -> Tensor:
        return self._loss(self.inner(x))

    def _loss(self, scores: Tensor) -> Tensor:
        return scores.sum() if self.config.options["deep"] else scores.mean()


def _run(compiled: bool) -> list[Tensor]:
    torch.manual_seed(0)
    net = _Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = net(x)
        loss.backward()
        optimizer.step()
        return loss.detach()

    called: Any = dovetail.compile_step(step) if compiled else step
    results = []
    for number in range(5):
        net.config.scale = 2.0 + (number == 3)
        net.config.options["deep"] = number < 4
        results.append(called(torch.ones(2, 4)))
    return [*results, *net.parameters()]


def test_a_shared_configuration_is_recorded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts = []
    original = StepCapture._recorded

    def counted(self: StepCapture, *args: Any) -> Any:
        attempts.append(self.stops_at_weights)
        return original(self, *args)

    monkeypatch.setattr(StepCapture, "_recorded", counted)
    found = _run(compiled=True)
    assert attempts[:2] == [True, False]
    assert len(attempts) == 4  # one that stops at the first weight, and one for each kind of call
    assert all(map(torch.equal, found, _run(compiled=False)))
