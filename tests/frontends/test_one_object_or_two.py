"""Whether two containers are one object is part of the state of a program, even where they hold equal things."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import dovetail

MAKES: list[Callable[[], Any]] = [
    lambda: [1],
    list,
    dict,
    lambda: {"a": 1},
    lambda: deque([1]),
    lambda: {1, 2},
    lambda: np.ones(2),
    lambda: [[1]],
]


@pytest.mark.parametrize("door", [dovetail.compile, dovetail.compile_step], ids=lambda door: door.__name__)
@pytest.mark.parametrize("make", MAKES, ids=lambda make: str(make()))
def test_containers_that_become_one_object(make: Callable[[], Any], door: Any) -> None:
    held = SimpleNamespace(first=make(), second=make(), deep=[SimpleNamespace(third=make())])

    def function(x: torch.Tensor) -> torch.Tensor:
        x = x * 2 if held.first is held.second else x
        return x + 1 if held.first is held.deep[0].third else x

    run, x, own = door(function), torch.ones(2), held.second
    for _ in range(3):
        assert torch.equal(run(x), x)
    held.second = held.first
    assert torch.equal(run(x), x * 2)
    held.second = own
    assert torch.equal(run(x), x)
    held.deep[0].third = held.first
    assert torch.equal(run(x), x + 1)
