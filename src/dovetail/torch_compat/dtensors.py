"""Tensors that are spread over processes (`DTensor`), and the part that this process holds."""

from __future__ import annotations

import sys
from collections.abc import Hashable, Sequence
from typing import Any

import torch

from dovetail.torch_compat.subclasses import WrapperLayout, put_together, take_apart


def is_dtensor(item: object) -> bool:
    """Whether something is a `DTensor` whose local part is a plain tensor."""
    module = sys.modules.get("torch.distributed.tensor")
    if module is None or type(item) is not module.DTensor:
        return False
    local: Any = item
    return not hasattr(type(local._local_tensor), "__tensor_flatten__")


def local_of(tensor: Any) -> torch.Tensor:
    """The part that this process holds: the very object."""
    local: torch.Tensor = tensor._local_tensor
    return local


def placing_of(tensor: Any) -> Hashable:
    """Equal for tensors that are spread alike: over which processes, and how."""
    spec = tensor._spec
    return (spec.mesh, spec.placements, getattr(spec, "shard_order", None), spec.tensor_meta)


def layout_of(tensor: torch.Tensor) -> WrapperLayout:
    """How a tensor is made of its local part."""
    layout = take_apart(tensor)[1]
    assert isinstance(layout, WrapperLayout), "a DTensor wraps another tensor"
    return layout


def with_local(tensor: torch.Tensor, local: torch.Tensor) -> torch.Tensor:
    """A tensor that is spread like another one, of another local part."""
    return put_together(layout_of(tensor), [local])


def without_spread(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Those that are not spread, whose memory is their own."""
    return [tensor for tensor in tensors if not is_dtensor(tensor)]
