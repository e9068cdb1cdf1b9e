"""Which primitives pack weights for the kernels of one machine, and which read packed ones."""

from __future__ import annotations

import torch

from dovetail.ir.prim import Prim
from dovetail.ops.packed import PACK_CONV, PACK_LINEAR, PackedConv, PackedLinear
from dovetail.ops.panels import PACK_PANELS, PanelLinear, plain_weight
from dovetail.ops.quantized import PACK_INT8, Int8Linear


def is_packing(target: object) -> bool:
    """Whether a primitive gives an opaque packed weight. It takes the weight, and last what size is expected."""
    return target is PACK_LINEAR or target is PACK_CONV or target is PACK_INT8 or target is PACK_PANELS


def unpacks(target: object) -> bool:
    """Whether what a packing primitive gives can be told to give the weight back, each bit of it."""
    return is_packing(target) and target is not PACK_INT8


def takes_packed(target: object) -> bool:
    """Whether a primitive reads a packed weight, its second operand; or a plain one in its place."""
    return isinstance(target, Prim) and isinstance(target.run, PackedLinear | PackedConv | PanelLinear | Int8Linear)


def unpacked(tensor: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """The weight of a shape that a packed one was made of, each bit of it."""
    return plain_weight(tensor, shape[0]) if tensor.layout is torch.strided else tensor.to_dense()
