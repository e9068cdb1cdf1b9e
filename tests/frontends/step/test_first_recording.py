"""Steps that are recorded in their first call, before anything is known of what they read.

Under a limit no call in eager mode has shown where the code reads, so that a recording may find real generators, caches
and tensors: all must be as before when the next one begins.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import dovetail
from tests.frontends.step import test_draws, test_held_arrays
from tests.rotation import rotated

LIMIT = "1GiB"


@pytest.mark.parametrize("name", rotated([*test_held_arrays.TAKES], 3))
def test_held_arrays_in_a_first_call(name: str) -> None:
    stats = test_held_arrays.compared(test_held_arrays.TAKES[name], memory_limit=LIMIT).stats
    assert (stats.captures, stats.eager_calls) == (1, 0), stats


@pytest.mark.parametrize("name", ["noisy", "parts", "masked"])
def test_held_arrays_that_change(name: str) -> None:
    changes = test_held_arrays._changes
    stats = test_held_arrays.compared(test_held_arrays.TAKES[name], changes, memory_limit=LIMIT).stats
    assert (stats.captures, stats.eager_calls) == (1, 0), stats


@pytest.mark.parametrize("name", rotated([*test_draws.DRAWS], 2))
def test_draws_in_a_first_call(name: str) -> None:
    stats = test_draws.drawn(test_draws.DRAWS[name], memory_limit=LIMIT).stats
    assert (stats.captures, stats.eager_calls) == (1, 0), stats


@pytest.mark.parametrize("name", rotated([*test_draws.ARRAYS], 3))
def test_arrays_are_drawn_while_an_optimizer_makes_its_state(name: str) -> None:
    stats = test_draws.taken(test_draws.ARRAYS[name], memory_limit=LIMIT).stats
    assert (stats.captures, stats.eager_calls) == (1, 0), stats


class _Rig:
    """What a step may reach in a way that nothing shows before it runs."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.net = nn.Linear(3, 1, bias=False)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.rng = np.random.default_rng(3)
        self.random = random.Random(3)
        self.sums = functools.lru_cache(None)(lambda size: torch.ones(size).cumsum(0))
        self.few = functools.lru_cache(2)(lambda size: [torch.ones(size)])

    def trained(self, scale: Any, x: Tensor) -> Tensor:
        self.optimizer.zero_grad()
        loss = (self.net(x) * scale).sum()
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def _hook(rig: _Rig, x: Tensor) -> Tensor:
    hook = rig.net.weight.register_hook(lambda gradient: gradient * 2)
    loss = rig.trained(1, x)
    hook.remove()
    return loss


def _hook_that_stays(rig: _Rig, x: Tensor) -> Tensor:
    rig.net.weight.register_hook(lambda gradient: gradient * 2)
    return rig.trained(1, x)


def _frozen_in_the_end(rig: _Rig, x: Tensor) -> Tensor:
    loss = rig.trained(1, x)
    rig.net.requires_grad_(False)
    return loss


def _counted_on_the_tensor(rig: _Rig, x: Tensor) -> Tensor:
    rig.net.weight.count = getattr(rig.net.weight, "count", 0) + 1
    return rig.trained(rig.net.weight.count, x)


ACTS: dict[str, Callable[[_Rig, Tensor], Tensor]] = {
    "hook": _hook,
    "hook that stays": _hook_that_stays,
    "a generator of NumPy": lambda rig, x: rig.trained(torch.tensor(rig.rng.random(3), dtype=torch.float32), x),
    "a generator of Python": lambda rig, x: rig.trained(rig.random.random(), x),
    "a generator and new memory": lambda rig, x: rig.trained(float((np.zeros(3) + rig.rng.random(3)).sum()), x),
    "its state": lambda rig, x: rig.trained(len(rig.rng.bit_generator.state), x),
    "results that are remembered": lambda rig, x: rig.trained(rig.sums(4), x),
    "few results that are remembered": lambda rig, x: rig.trained(rig.few(4)[0], x),
    "frozen in the end": _frozen_in_the_end,
    "counted on the tensor": _counted_on_the_tensor,
}


@pytest.mark.filterwarnings("ignore::dovetail.DovetailWarning")
@pytest.mark.parametrize("name", ACTS)
def test_a_first_recording_leaves_nothing_behind(name: str) -> None:
    found = []
    for compiled in (False, True):
        rig = _Rig()

        def step(x: Tensor) -> Tensor:
            return ACTS[name](rig, x)  # noqa: B023

        run = dovetail.compile_step(step, memory_limit=LIMIT, on_unsupported="eager") if compiled else step
        results, weight = [], rig.net.weight
        for n in range(4):
            weight.requires_grad_()
            results.append((run(torch.full((4, 3), 0.1 * n)).tolist(), weight.requires_grad))
        assert weight.grad is not None
        generators = repr(rig.rng.bit_generator.state), rig.random.random()
        left = (weight.tolist(), weight.grad.tolist(), list(vars(weight).items()), generators)
        remembered = [type(x) for x in (rig.sums(4), rig.few(4)[0])]
        found.append((results, left, remembered))
    assert found[0] == found[1]
