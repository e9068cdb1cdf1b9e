"""Dtypes that kernels of the CPU refuse, and torch's fakes do not.

    torch.nn.Linear(3, 3)(x.double())     eager: mat1 and mat2 must have the same dtype; a fake: a result

A program must not be made of such a call: it would raise in its middle, when part of its work was done otherwise than
in eager mode. So the kernel itself is asked, on zeros, once for each combination of dtypes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from dovetail.torch_compat.dispatch import Overload, schema_of, without_modes
from dovetail.torch_compat.modes import autocast_off
from dovetail.torch_compat.nested import tensors_in
from dovetail.torch_compat.symbols import hint_of

_NAMES = (
    "_batch_norm_with_update _cdist_forward _embedding_bag _embedding_bag_forward_only _log_softmax "
    "_native_batch_norm_legit _native_batch_norm_legit_no_training _softmax addbmm addmm addmv addr baddbmm "
    "binary_cross_entropy bmm complex convolution dot grid_sampler_2d grid_sampler_3d heaviside huber_loss index_add "
    "index_copy index_fill index_put index_reduce index_select linalg_cross log_sigmoid_forward mm multi_margin_loss "
    "multilabel_margin_loss_forward mv native_batch_norm native_group_norm native_layer_norm nll_loss2d_forward "
    "nll_loss_forward polar put rsub soft_margin_loss sub vdot"
)
_ASKED = frozenset({name for each in _NAMES.split() for name in (each, f"{each}_")})
_MOST, _FEW = 1 << 16, 8
_TAKEN: set[object] = set()


def refuse_dtypes(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raises: RuntimeError, with the kernel's words, where it does not take operands of these dtypes."""
    if not isinstance(op, Overload) or schema_of(op).name not in _ASKED or schema_of(op).namespace != "aten":
        return
    operands = list(tensors_in((*args, *kwargs.values())))
    first = operands[0].dtype if operands else torch.float32
    if first.is_floating_point and all(operand.dtype is first for operand in operands):
        return
    if not all(operand.device.type == "cpu" and operand.layout is torch.strided for operand in operands):
        return
    key = (op, torch.get_default_dtype(), tuple(map(_kind, args)), tuple((n, _kind(x)) for n, x in kwargs.items()))
    if key in _TAKEN:
        return
    said = _refusal(op, args, kwargs, operands)
    if said:  # of these sizes perhaps: others are asked about again
        raise RuntimeError(said)
    _TAKEN.add(key)


def _refusal(op: Overload, args: Sequence[Any], kwargs: Mapping[str, Any], operands: Sequence[torch.Tensor]) -> str:
    """What the kernel says, "" where it says nothing."""
    shapes = [[_size(size) for size in operand.shape] for operand in operands]
    if any(not size for shape in shapes for size in shape):
        return ""
    most = _MOST if sum(map(math.prod, shapes)) <= _MOST else _FEW
    said = _said(op, args, kwargs, most)
    if most == _MOST and all(operand.dtype not in (torch.bool, torch.uint8) for operand in operands):
        return said
    # it may be said of sizes, which do not fit each other, or which hang on what a mask takes
    fits = said and not all(_said(op, args, kwargs, most, alike) for alike in (_wide_alike, _all_alike, _both_alike))
    return said if fits else ""


def _said(
    op: Overload,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    most: int,
    alike: Callable[[torch.dtype], torch.dtype] = lambda dtype: dtype,
) -> str:
    """What the kernel says to zeros. most: in each dimension. alike: which dtype they have in the place of theirs."""

    def made(item: Any) -> Any:
        if isinstance(item, list | tuple):
            return [made(part) for part in item]
        if not isinstance(item, torch.Tensor):
            return item
        return torch.zeros([min(_size(size), most) for size in item.shape], dtype=alike(item.dtype), device="cpu")

    with without_modes(), torch.no_grad(), autocast_off():
        try:
            op(*map(made, args), **{name: made(item) for name, item in kwargs.items()})
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            return str(error) or type(error).__name__
    return ""


def _size(size: Any) -> int:
    """A size as the number that it is now, 0 where that is not known."""
    return size if type(size) is int else int(hint_of(size) or 0)


def _wide_alike(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype.is_floating_point or dtype.is_complex else dtype


def _all_alike(_: torch.dtype) -> torch.dtype:
    return torch.float32


def _both_alike(dtype: torch.dtype) -> torch.dtype:
    is_whole = not (dtype.is_floating_point or dtype.is_complex or dtype is torch.bool)
    return torch.int64 if is_whole else _wide_alike(dtype)


def _kind(item: Any) -> object:
    if isinstance(item, list | tuple):
        return tuple(map(_kind, item))
    return (item.dtype, item.dim()) if isinstance(item, torch.Tensor) else type(item)
