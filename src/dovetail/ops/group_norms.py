"""A primitive that normalises groups of channels of images, channels last, as exactly as it is done for planes.

    y = prims.GROUP_NORM(x, weight, bias, groups, eps)

It is made of `native_group_norm` where a program runs, if rounding may differ, and is in no file. torch's kernel for
channels last finds variances as differences of squares: of numbers that are far from zero next to their spread, few
digits are left.
"""

from __future__ import annotations

import torch

from dovetail.ir.prim import Prim
from dovetail.ir.program import Node, Operand, TensorMeta, Value
from dovetail.ops.arguments import arguments_of

_IMAGE = 4


def _group_norm(
    x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, groups: int, eps: float
) -> torch.Tensor:
    made = torch.nn.functional.group_norm(x.contiguous(), groups, weight, bias, eps)
    return torch.empty_like(x, memory_format=torch.channels_last).copy_(made)


GROUP_NORM = Prim("group_norm", _group_norm, "prims.GROUP_NORM", takes_memory=True)


def group_norm_of(node: Node) -> tuple[Operand, ...] | None:
    """The arguments of `GROUP_NORM` for a node that normalises images of float32 on a CPU with channels last, any
    number of them; None for others. Not checked: that its means and its spreads are read by nobody.
    """
    if node.target is not torch.ops.aten.native_group_norm.default:
        return None
    arguments, (result, *_) = arguments_of(node), node.results()
    x, groups, eps = arguments["input"], arguments["group"], arguments["eps"]
    if not isinstance(x, Value) or not isinstance(groups, int) or not isinstance(eps, float):
        return None
    if not _is_channels_last(x.tensor) or not _is_channels_last(result.tensor):
        return None
    affine = arguments.get("weight"), arguments.get("bias")
    if any(isinstance(each, Value) and not _is_row(each.tensor) for each in affine):
        return None
    return (x, *affine, groups, eps)


def _is_channels_last(meta: TensorMeta) -> bool:
    """Whether a tensor is images of float32 on a CPU with channels last, whose sizes are known but for their number."""
    if len(meta.shape) != _IMAGE or meta.dtype is not torch.float32 or meta.device.type != "cpu":
        return False
    _, channels, height, width = meta.shape
    if not isinstance(channels, int) or not isinstance(height, int) or not isinstance(width, int):
        return False
    strides = (height * width * channels, 1, width * channels, channels)
    return tuple(meta.stride) == strides and channels > 1 and height * width > 1


def _is_row(meta: TensorMeta) -> bool:
    return meta.dtype is torch.float32 and tuple(meta.stride) == (1,)
