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
from dovetail.ops.max_pools import is_known_image


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
    if not all(is_known_image(value, of_any_count=True) for value in (x, result)):
        return None
    affine = arguments.get("weight"), arguments.get("bias")
    if any(isinstance(each, Value) and not _is_row(each.tensor) for each in affine):
        return None
    return (x, *affine, groups, eps)


def _is_row(meta: TensorMeta) -> bool:
    return meta.dtype is torch.float32 and tuple(meta.stride) == (1,)
