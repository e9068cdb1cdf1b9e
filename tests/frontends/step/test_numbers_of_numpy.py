"""Numbers that NumPy draws are of its classes where code gets them: results, sums, powers that overflow, and texts."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import dovetail


def whole() -> Any:
    return np.random.permutation(9)[0]


def share() -> Any:
    return np.random.rand(2)[0]


USES: dict[str, Callable[[torch.Tensor], Any]] = {
    "drawn": lambda x: (np.random.choice([1, 2]), whole(), share(), share() > 0.5, np.random.rand(3).argmax()),
    "of Python": lambda x: (np.random.randint(5), np.random.rand(), random.randint(0, 5)),
    "computed with": lambda x: (whole() * 2 - 1, whole() / 2, -whole(), ~whole(), whole() + share(), whole() // 2),
    "compared": lambda x: (whole() > 3, whole() == 3, ~(share() > 0.5), (share() > 0.5) & (share() > 0.2)),
    "beside Python's": lambda x: (whole() + random.randint(0, 5), whole() + x.sum().item(), max(whole(), whole())),
    "made plain": lambda x: (int(whole()), float(whole()), whole().item(), (share() > 0.5).item(), round(whole())),
    "a class": lambda x: (isinstance(whole(), np.integer), isinstance(whole(), int), isinstance(share(), np.floating)),
    "texts": lambda x: (repr(whole()), repr(share()), str(whole()), f"{whole():03d} {share()}", format(share(), ".2f")),
    "overflowing": lambda x: (whole() + 2) ** 60,
    "maths": lambda x: (math.sqrt(whole()), np.sqrt(whole()), np.random.randint(0, whole() + 1), sum([whole(), 1])),
    "kept in containers": lambda x: [whole(), {"is": share() > 0.5}, (share(),)],
    "of operators": lambda x: (
        x * whole() + torch.tensor(whole()),
        x.clamp(max=whole()),
        torch.full((2,), whole() * 1),
    ),
}
ASKING: dict[str, Callable[[torch.Tensor], Any]] = {
    "branch": lambda x: x * 2 if share() > 0.5 else x,
    "not": lambda x: not (share() > 0.5),
    "index": lambda x: (x[np.random.permutation(2)[0]], [1, 2][np.random.permutation(2)[0]]),
    "key": lambda x: {np.random.permutation(2)[0]: 1},
    "choice of one": lambda x: max(np.random.permutation(2)[0], 0.5),
}


def compared(use: Callable[[torch.Tensor], Any]) -> Any:
    """Compare a step, eager and compiled: what it gives, with its classes. Returns the compiled one."""
    found, run = [], None
    for compiled in (False, True):
        np.random.seed(0)
        random.seed(0)
        weight = torch.zeros(2)

        def step(x: torch.Tensor) -> Any:
            weight.add_(x)  # noqa: B023
            return use(x)

        run = dovetail.compile_step(step) if compiled else step
        found.append(([repr(run(torch.ones(2) + number)) for number in range(8)], np.random.rand()))
    assert found[0] == found[1]
    return run


@pytest.mark.filterwarnings("ignore:.* encountered in:RuntimeWarning")
@pytest.mark.parametrize("name", USES)
def test_they_are_of_their_classes(name: str) -> None:
    stats = compared(USES[name]).stats
    assert (stats.captures, stats.eager_calls) == (1, 0), stats


@pytest.mark.parametrize("name", ASKING)
def test_they_are_asked_for(name: str) -> None:
    assert compared(ASKING[name]).stats.captures > 1


def test_they_are_kept() -> None:
    class Owner:
        kept: Any = None

    for _ in range(2):
        owner = Owner()

        def use(x: torch.Tensor, owner: Owner = owner) -> Any:
            owner.kept = whole()
            return owner.kept

        compared(use)
