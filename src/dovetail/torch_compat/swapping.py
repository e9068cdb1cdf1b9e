"""Exchanging what two tensor objects are, so that everybody who holds one of them holds the other's contents."""

from __future__ import annotations

from typing import Any

import torch

_HOOK_TABLES = ("_backward_hooks", "_post_accumulate_grad_hooks")


def exchange_tensors(tensor: torch.Tensor, other: torch.Tensor) -> None:
    """Let each of two tensor objects be what the other one was: class, attributes, data, gradient.

    References to the objects, weak ones included, stay what they are. `torch.utils.swap_tensors` does the same for
    tensors that nobody watches or uses otherwise. Exchanging twice leaves no trace.
    """
    tensor_class: Any = type(tensor)
    other_class: Any = type(other)
    tensor.__class__, other.__class__ = other_class, tensor_class
    tensor.__dict__, other.__dict__ = other.__dict__, tensor.__dict__
    torch._C._swap_tensor_impl(tensor, other)


def share_hooks(source: torch.Tensor, target: torch.Tensor) -> None:
    """Let autograd call the gradient hooks of one leaf for another leaf as well; attributes come along.

    Hooks belong to what a tensor object is, not to the object: without this, an exchange hides them.
    """
    for table in _HOOK_TABLES:
        hooks = getattr(source, table, None)
        if hooks:
            setattr(target, table, hooks)
    for name, value in source.__dict__.items():
        target.__dict__.setdefault(name, value)
