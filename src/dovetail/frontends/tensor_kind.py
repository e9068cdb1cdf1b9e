"""What a program relies on in a tensor, its numbers apart."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NamedTuple

import torch

from dovetail.torch_compat.subclasses import is_wrapper, take_apart


class TensorKind(NamedTuple):
    """Equal for tensors that one program can take. parts: of a tensor that wraps others; of one
    that is not strided, its layout."""

    tensor_class: type
    requires_grad: bool
    is_leaf: bool
    shape: tuple[int, ...] | int
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    conjugation: bool
    negation: bool
    parts: Hashable = None


def kind_of(tensor: Any, *, has_sizes: bool = True) -> TensorKind | None:
    """The kind of a tensor, None for anything else. has_sizes: else, of the shape only the number of dimensions."""
    if not isinstance(tensor, torch.Tensor):
        return None
    has_sizes = has_sizes and not tensor.is_nested  # which no program takes
    return TensorKind(
        type(tensor),
        tensor.requires_grad,
        tensor.is_leaf,
        tuple(tensor.shape) if has_sizes else tensor.dim(),
        tensor.stride() if has_sizes and tensor.layout is torch.strided else (),
        tensor.dtype,
        tensor.device,
        tensor.is_conj(),
        tensor.is_neg(),
        _parts(tensor) if is_wrapper(tensor) else None if tensor.layout is torch.strided else str(tensor.layout),
    )


def difference(old: TensorKind | None, new: TensorKind | None, name: str) -> str:
    """What tells two kinds of a tensor apart, "" where nothing does."""
    if old is None or new is None:
        return "" if old is new else f"{name} is {'no' if new is None else 'a'} tensor"
    for aspect, before, after in zip(TensorKind._fields, old, new, strict=True):
        if before != after:
            return f"{aspect.replace('_', ' ')} of {name} changed: {before} -> {after}"
    return ""


def _parts(wrapper: torch.Tensor) -> Hashable:
    parts, layout = take_apart(wrapper)
    return (layout.key(), tuple((part.shape, part.stride(), part.dtype, part.device) for part in parts))
