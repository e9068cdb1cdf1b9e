"""Gradient hooks that were registered on tensor objects."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch


def has_hooks(tensor: torch.Tensor) -> bool:
    """Whether a gradient hook was registered on this tensor object."""
    return bool(tensor._backward_hooks)


@contextlib.contextmanager
def without_hooks(tensor: torch.Tensor) -> Iterator[None]:
    """While active, gradient hooks of a tensor object are not called, and what it retains of a gradient is undone."""
    hooks: Any = tensor._backward_hooks
    held, gradient = dict(hooks or {}), tensor.grad if tensor.retains_grad else None
    try:
        if held:
            hooks.clear()
        yield
    finally:
        if held:
            hooks.update(held)
        if tensor.retains_grad:
            tensor.grad = gradient
