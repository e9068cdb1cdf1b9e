"""Branches over data: a program for each way that calls have gone, and none twice."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import dovetail


def best_so_far(s: Any, x: Tensor) -> Any:
    loss = x.square().mean().item()
    if loss < s.best:
        s.best, s.bad = loss, 0
    else:
        s.bad += 1
    return loss * s.bad


def three_ways(s: Any, x: Tensor) -> Any:
    total = x.sum()
    if total > s.best:
        return total * 2
    if total < -s.best:
        return total - 1
    return total.exp()


def one_inside_the_other(s: Any, x: Tensor) -> Any:
    s.bad += 1
    if x.mean() > 0.1:
        return x * 2 if x.max() > 1.2 else x * 3
    return x - 1


def a_loop(s: Any, x: Tensor) -> Any:
    count = 0
    while x.norm() > 1:
        x = x / 2
        count += 1
    return x, count


# Each with its bound, and how many programs it has at most.
STEPS = [(best_so_far, math.inf, 3), (three_ways, 0.5, 3), (one_inside_the_other, 0.0, 4), (a_loop, 0.0, 6)]


@pytest.mark.parametrize(("step", "best", "most"), STEPS, ids=lambda x: getattr(x, "__name__", ""))
def test_a_program_for_each_way(step: Any, best: float, most: int) -> None:
    found = []
    for compiled in (False, True):
        s, generator = SimpleNamespace(best=best, bad=0), torch.Generator().manual_seed(3)

        def run(x: Tensor, s: Any = s) -> Any:
            return step(s, x)

        called, seen = dovetail.compile_step(run) if compiled else run, []
        for _ in range(40):
            result = called(torch.randn(4, generator=generator))
            seen.append((str(result), dict(vars(s))))
        found.append(seen)
        if compiled:
            stats = called.stats
            assert stats.captures <= most, stats
            assert stats.eager_calls <= most + 1, stats
    assert found[0] == found[1]
