"""What the first call of a step takes: no more than eager mode's first call, and no more than is said of it."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree

import dovetail
from dovetail.inspect.memory import measure_peak
from tests.frontends.step.test_first_call import OPTIMIZERS
from tests.frontends.test_estimate import Trained

WIDTH = 256


class Training(Trained):
    """Layers, whose activations take more than weights where the batch is large."""

    def __init__(self, name: str, rows: int) -> None:
        torch.manual_seed(0)
        self.net = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU())))
        self.optimizer = OPTIMIZERS[name][0](self.net.parameters())
        self.batch = torch.randn(rows, WIDTH)

    def held(self) -> int:
        """Bytes of what is there between calls, gradients left out."""
        state: Any = pytree.tree_leaves(self.optimizer.state_dict()["state"])
        tensors = [*self.net.parameters(), self.batch, *(x for x in state if isinstance(x, Tensor))]
        return sum(x.untyped_storage().nbytes() for x in tensors)


@pytest.mark.parametrize("keep_grads", [True, False])
@pytest.mark.parametrize("rows", [8, 256, 1024])
@pytest.mark.parametrize("name", ["SGD", "momentum", "AdamW", "RMSprop"])
def test_the_first_call_takes_no_more_than_eager_and_than_is_said(name: str, rows: int, keep_grads: bool) -> None:
    tried, eager, training = (Training(name, rows) for _ in range(3))
    dovetail.compile_step(tried.step, keep_grads=keep_grads)(tried.batch)  # operators are tried once in a process
    wanted = measure_peak(eager.step, eager.batch)
    step = dovetail.compile_step(training.step, keep_grads=keep_grads)
    before = training.held()
    found = measure_peak(step, training.batch)
    told = step.explain()
    assert step.stats.eager_calls == 0
    assert torch.equal(found.result, wanted.result)
    assert all(map(torch.equal, training.net.parameters(), eager.net.parameters()))
    assert found.peak_bytes <= wanted.peak_bytes
    assert before + found.peak_bytes <= told.state_bytes + told.peak_bytes


_MORE: dict[str, Any] = {
    "Adamax": torch.optim.Adamax,  # writes over an operand by an operator that has no in-place variant
    "ASGD": torch.optim.ASGD,
    "fused AdamW": lambda weights: torch.optim.AdamW(weights, fused=True),
    "centered RMSprop": lambda weights: torch.optim.RMSprop(weights, momentum=0.9, centered=True),
}


@pytest.mark.parametrize("name", _MORE)
def test_no_call_takes_more_than_eager(name: str) -> None:
    """Weights, gradients and state are most of it."""
    peaks: list[list[int]] = []
    for is_compiled in (False, True, True):  # operators are tried once in a process
        training = Training("SGD", 8)
        training.optimizer = _MORE[name](training.net.parameters())
        step: Any = dovetail.compile_step(training.step) if is_compiled else training.step
        peaks.append([measure_peak(step, training.batch).peak_bytes for _ in range(2)])
    scalars = 8 * 4 * 4
    assert peaks[2][0] <= peaks[0][0] + scalars
    assert peaks[2][1] <= peaks[0][1]


def test_state_that_would_lift_the_peak_is_made_where_eager_mode_makes_it() -> None:
    """Adam's moments are zeros first: made before a program of later calls, where they lie below activations."""
    programs = []
    for rows in (8, 256):
        training = Training("AdamW", rows)
        step = dovetail.compile_step(training.step)
        for _ in range(2):
            step(training.batch)
        programs.append(step.stats.captures)
    assert programs == [1, 2]


class TwoTowers(Training):
    """Two encoders and a contrastive loss, whose operators take memory besides."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        tower = [nn.Linear(128, WIDTH), nn.GELU(), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.GELU()]
        self.net = nn.Sequential(*tower, nn.Linear(WIDTH, 64))
        self.other = copy.deepcopy(self.net)
        self.warmth = nn.Parameter(torch.tensor(2.0))
        self.weights = [*self.net.parameters(), *self.other.parameters(), self.warmth]
        self.optimizer = torch.optim.AdamW(self.weights)
        self.batch = torch.randn(512, 128)

    def loss(self, batch: Tensor) -> Tensor:
        first, second = (F.normalize(net(batch), dim=-1) for net in (self.net, self.other))
        scores = first @ second.T * self.warmth.exp()
        own = torch.arange(len(batch))
        return (F.cross_entropy(scores, own) + F.cross_entropy(scores.T, own)) / 2

    def step(self, batch: Tensor) -> Tensor:
        self.optimizer.zero_grad()
        loss = self.loss(batch)
        loss.backward()
        nn.utils.clip_grad_norm_(self.weights, 1.0)
        self.optimizer.step()
        return loss.detach()


def test_state_made_beforehand_counts_beside_what_operators_take() -> None:
    tried, eager, training = (TwoTowers() for _ in range(3))
    dovetail.compile_step(tried.step)(tried.batch)
    wanted = measure_peak(eager.step, eager.batch)
    found = measure_peak(dovetail.compile_step(training.step), training.batch)
    assert torch.equal(found.result, wanted.result)
    counters = 4 * len(training.optimizer.state)  # are known while the call is recorded
    assert found.peak_bytes <= wanted.peak_bytes + counters
