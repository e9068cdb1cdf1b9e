"""Which primitives pack weights for the kernels of one machine, and which read packed ones."""

from __future__ import annotations

import torch

from dovetail.ir.prim import Prim
from dovetail.ops.packed import PACK_CONV, PACK_LINEAR, PackedConv, PackedLinear
from dovetail.ops.panel_convolutions import PACK_TAPS, PanelConv, plain_kernel
from dovetail.ops.panels import PACK_PANELS, PanelLinear, RecurrentLayer, plain_weight
from dovetail.ops.quantized import PACK_INT8, PACK_INT8_PANELS, QUANTIZE_ROWS, ROW_RANGES, Int8Linear, Int8PanelLinear

_MATRIX = 2
_PACKING = (PACK_LINEAR, PACK_CONV, PACK_INT8, PACK_PANELS, PACK_TAPS, PACK_INT8_PANELS)


def is_packing(target: object) -> bool:
    """Whether a primitive gives an opaque packed weight. It takes the weight, and last what size is expected."""
    return any(target is packing for packing in _PACKING)


def unpacks(target: object) -> bool:
    """Whether what a packing primitive gives can be told to give the weight back, each bit of it."""
    return is_packing(target) and target is not PACK_INT8 and target is not PACK_INT8_PANELS


def takes_packed(target: object) -> bool:
    """Whether a primitive reads a packed weight, or several in a list, its second operand; or plain ones instead."""
    return isinstance(target, Prim) and isinstance(
        target.run, PackedLinear | PackedConv | PanelLinear | PanelConv | Int8Linear | Int8PanelLinear | RecurrentLayer
    )


def unpacked(tensor: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """The weight of a shape that a packed one was made of, each bit of it."""
    if tensor.layout is not torch.strided:
        return tensor.to_dense()
    return plain_weight(tensor, shape[0]) if len(shape) == _MATRIX else plain_kernel(tensor, shape)


def reads_panels(target: object) -> bool:
    """Whether a primitive reads a weight in panels or taps."""
    return isinstance(target, Prim) and isinstance(
        target.run, PanelLinear | PanelConv | Int8PanelLinear | RecurrentLayer
    )


def rounds_rows(target: object) -> bool:
    """Whether a primitive is part of rounding an input to 8-bit integers."""
    return target is ROW_RANGES or target is QUANTIZE_ROWS


def runs_steps(target: object) -> bool:
    """Whether a primitive is a recurrent layer over packed weights, or plain ones."""
    return isinstance(target, Prim) and isinstance(target.run, RecurrentLayer)
