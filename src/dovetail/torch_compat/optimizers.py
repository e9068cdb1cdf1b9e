"""What optimizers hold and ask under private names."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch._subclasses import FakeTensor
from torch.optim import optimizer as _optimizer
from torch.utils import _foreach_utils


@contextlib.contextmanager
def lists_of_fakes() -> Iterator[None]:
    """While active, fakes are given to operators on lists of tensors where the tensors that they stand for are.

    Optimizers, and the clipping of gradients, look up the tensors' type. On GPUs such operators give other bits than
    operators on one tensor.
    """
    known: list[list[Any]] = [_optimizer._foreach_supported_types, _foreach_utils._foreach_supported_types]
    for types in known:
        types.append(FakeTensor)
    try:
        yield
    finally:
        for types in known:
            types.remove(FakeTensor)


def step_hook_tables(optimizer: torch.optim.Optimizer) -> tuple[dict[int, Any], dict[int, Any]]:
    """The functions that run before and after each step of an optimizer, by the number of their registration."""
    return optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks


def global_step_hook_tables() -> tuple[dict[int, Any], dict[int, Any]]:
    """The functions that run before and after each step of every optimizer, by the number of their registration."""
    return _optimizer._global_optimizer_pre_hooks, _optimizer._global_optimizer_post_hooks


def has_stepped(optimizer: torch.optim.Optimizer) -> bool:
    """Whether an optimizer that has a scheduler has been stepped, as schedulers ask."""
    return bool(getattr(optimizer, "_opt_called", False))


@contextlib.contextmanager
def without_warning_of_order(scheduler: Any) -> Iterator[None]:
    """While active, the first step of a scheduler does not warn that its optimizer has not stepped before."""
    if getattr(scheduler, "_step_count", 1) > 1:
        yield
        return
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
        yield
