"""What stands in for containers, schedulers and generators while a step is recorded looks like them to any code."""

from __future__ import annotations

import copy
import heapq
import random
from collections import OrderedDict, deque
from collections.abc import Callable
from enum import Enum
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import _pytree as pytree

import dovetail


class Phase(Enum):
    """Of a training."""

    WARM = 1
    FULL = 2


def _scheduler() -> Any:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
    return torch.optim.lr_scheduler.StepLR(optimizer, 1)


def type_of_list(h: Any, loss: torch.Tensor) -> Any:
    h.append(loss.item())
    return type(h) is list, type(h) in (list, tuple), h.__class__ is list, type(h).__name__


def added_to_another(h: Any, loss: torch.Tensor) -> Any:
    h.append(loss.item())
    return [0.0] + h  # noqa: RUF005


def appended_past_its_methods(h: Any, loss: torch.Tensor) -> Any:
    h.append(loss.item())
    list.append(h, 2)


def pushed_by_code_of_c(h: Any, loss: torch.Tensor) -> Any:
    h.append(float(len(loss.shape)))
    heapq.heapify(h)


def popped_by_code_of_c(h: Any, loss: torch.Tensor) -> Any:
    h.append(1.5)
    h.append(2.5)
    return heapq.heappop(h)


def mapped(h: Any, loss: torch.Tensor) -> Any:
    h["loss"] = loss.detach()
    return pytree.tree_map(lambda x: x * 2, h)


def copied(h: Any, loss: torch.Tensor) -> Any:
    h["loss"] = loss.detach()
    return copy.copy(h)


def type_of_scheduler(h: Any, loss: torch.Tensor) -> Any:
    h.optimizer.step()
    h.step()
    return loss * 2, type(h) is torch.optim.lr_scheduler.StepLR, h.__class__.__name__


def type_of_generator(h: Any, loss: torch.Tensor) -> Any:
    return loss * h.random(), type(h) in (np.random.Generator, random.Random)


def type_of_drawn(h: Any, loss: torch.Tensor) -> Any:
    drawn = h.random(3)
    return loss * torch.from_numpy(drawn), type(drawn) is np.ndarray


def phase_that_turns(h: Any, loss: torch.Tensor) -> Any:
    h.calls += 1
    if h.calls > 2:
        h.phase = Phase.FULL
    return loss * h.phase.value


def dtype_that_turns(h: Any, loss: torch.Tensor) -> Any:
    h.dtype = torch.float64 if h.dtype is torch.float32 else torch.float32
    return loss.to(h.dtype)


CASES: list[tuple[Callable[..., Any], Callable[[], Any]]] = [
    *((function, list) for function in (type_of_list, added_to_another, appended_past_its_methods)),
    *((function, list) for function in (pushed_by_code_of_c, popped_by_code_of_c)),
    *((function, dict) for function in (mapped, copied)),
    (type_of_scheduler, _scheduler),
    *((type_of_generator, make) for make in (lambda: np.random.default_rng(0), lambda: random.Random(0))),
    (type_of_drawn, lambda: np.random.default_rng(0)),
    (phase_that_turns, lambda: SimpleNamespace(calls=0, phase=Phase.WARM)),
    (dtype_that_turns, lambda: SimpleNamespace(dtype=torch.float32)),
]


def _shown(item: Any) -> Any:
    if isinstance(item, torch.Tensor):
        return item.dtype, item.tolist()
    if isinstance(item, dict | OrderedDict):
        return type(item), {key: _shown(value) for key, value in item.items()}
    if isinstance(item, list | tuple | deque):
        return type(item), list(map(_shown, item))
    return vars(item) if isinstance(item, SimpleNamespace) else item


def _followed(function: Callable[..., Any], make: Callable[[], Any], compiled: bool) -> list[Any]:
    held, weight = make(), torch.nn.Parameter(torch.arange(3.0))

    def step(x: torch.Tensor) -> Any:
        weight.grad = None
        loss = (weight * x).square().sum()
        loss.backward()
        return function(held, loss.detach())

    run = dovetail.compile_step(step) if compiled else step
    seen = []
    for call in range(4):
        result = run(torch.full((3,), call + 0.5))
        kept = copy.deepcopy(held) if isinstance(held, list | dict | SimpleNamespace) else None
        seen.append((_shown(result), _shown(kept)))
    return seen


@pytest.mark.parametrize(("function", "make"), CASES, ids=lambda x: getattr(x, "__name__", "state"))
def test_code_sees_what_it_sees_in_eager_mode(function: Callable[..., Any], make: Callable[[], Any]) -> None:
    assert _followed(function, make, compiled=True) == _followed(function, make, compiled=False)
