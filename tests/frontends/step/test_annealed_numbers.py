"""Numbers that each call makes smaller: bounds of gradients, ranges of noise, temperatures. One program is for all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dovetail


class Training:
    def __init__(self) -> None:
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 3))
        self.optimizer = torch.optim.SGD(self.net.parameters(), 0.1)
        self.value, self.count = 1.0, 0
        self.norms: list[float] = [1.0, 1.0]

    def gradients(self, x: Tensor) -> Tensor:
        self.value *= 0.9
        self.optimizer.zero_grad()
        loss = self.net(x).square().mean()
        loss.backward()
        return loss.detach()


def clipped_norm(t: Training, x: Tensor) -> Any:
    loss = t.gradients(x)
    norm = nn.utils.clip_grad_norm_(t.net.parameters(), t.value)
    t.optimizer.step()
    return loss, norm


def clipped_value(t: Training, x: Tensor) -> Any:
    loss = t.gradients(x)
    nn.utils.clip_grad_value_(t.net.parameters(), t.value * 0.01)
    t.optimizer.step()
    return loss


def clipped_by_history(t: Training, x: Tensor) -> Any:
    loss = t.gradients(x)
    norm = nn.utils.clip_grad_norm_(t.net.parameters(), sum(t.norms) / len(t.norms))
    t.norms = [*t.norms[1:], norm.item()]
    t.optimizer.step()
    return loss, t.norms[-1]


def whole_number(t: Training, x: Tensor) -> Any:
    loss = t.gradients(x)
    t.count += 1
    nn.utils.clip_grad_norm_(t.net.parameters(), t.count)
    t.optimizer.step()
    return loss


def uniform_noise(t: Training, x: Tensor) -> Any:
    loss = t.gradients(x + torch.empty_like(x).uniform_(-t.value, t.value))
    t.optimizer.step()
    return loss


def normal_noise(t: Training, x: Tensor) -> Any:
    return t.gradients(x + torch.normal(0.0, t.value, x.shape) + torch.zeros(3).normal_(t.value, 0.5))


def rare_noise(t: Training, x: Tensor) -> Any:
    return t.gradients(x * torch.empty_like(x).bernoulli_(t.value) + torch.empty_like(x).exponential_(1 / t.value))


STEPS: list[Callable[[Training, Tensor], Any]] = [
    clipped_norm, clipped_value, clipped_by_history, whole_number, uniform_noise, normal_noise, rare_noise,
]  # fmt: skip


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
def test_one_program_for_all_numbers(step: Callable[[Training, Tensor], Any]) -> None:
    found = []
    for compiled in (False, True):
        t = Training()

        def run(x: Tensor, t: Training = t) -> Any:
            return step(t, x)

        called, seen = dovetail.compile_step(run) if compiled else run, []
        torch.manual_seed(1)
        for n in range(14):
            result = called(torch.arange(12.0).view(4, 3) * 0.1 - n * 0.05)
            seen.append((str(result), t.value, t.norms, [p.tolist() for p in t.net.parameters()]))
        found.append(seen)
        if compiled:
            assert called.stats.captures <= 3, called.stats
            assert called.stats.eager_calls <= 1
    assert found[0] == found[1]


def test_a_number_that_a_formula_of_gradients_gets_is_guarded() -> None:
    """It may compute with the number: programs for each are safe."""
    t = Training()

    def step(x: Tensor) -> Tensor:
        t.value *= 0.5
        w = t.net[0].weight.detach().clone().requires_grad_()
        nn.functional.huber_loss(x @ w.t(), torch.zeros(4, 8), delta=t.value).backward()
        assert w.grad is not None
        return w.grad

    compiled, other, x = dovetail.compile_step(step), Training(), torch.arange(12.0).view(4, 3)
    for n in range(5):
        w = other.net[0].weight.detach().clone().requires_grad_()
        nn.functional.huber_loss(x @ w.t(), torch.zeros(4, 8), delta=0.5 ** (n + 1)).backward()
        assert w.grad is not None
        assert torch.equal(compiled(x), w.grad)
