"""Convolutions as the passes about layouts read them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch

from dovetail.ir.program import Node, TensorMeta, Value
from dovetail.ops.arguments import arguments_of

aten = torch.ops.aten

# By the number of dimensions of the input.
CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


@dataclass(frozen=True, slots=True)
class Convolution:
    """`result = convolution(x, weight, bias)` over two or three dimensions of space, on a CPU."""

    node: Node
    result: Value
    x: Value
    weight: Value
    bias: Value | None
    padding: list[int]
    stride: list[int]
    dilation: list[int]
    groups: int


def convolution_of(
    node: Node, constants: Collection[Value], dtypes: Collection[torch.dtype]
) -> Convolution | str | None:
    """A convolution whose weight may have a different layout; else a reason why not; None for another operator.

    constants: what is the same in each call. dtypes: what the weight may be.
    """
    if node.target is not aten.convolution.default:
        return None
    named = arguments_of(node)
    x, weight, bias = named["input"], named["weight"], named["bias"]
    (result,) = node.results()
    assert isinstance(x, Value) and isinstance(weight, Value), "convolutions are of tensors"
    geometry = [_numbers(named[name]) for name in ("padding", "stride", "dilation")]
    groups = named["groups"]
    if weight not in constants:
        return "WEIGHT-CHANGES: its weight is not a constant"
    if named["transposed"]:
        return "TRANSPOSED: it follows the layout of its input, whatever the weight's layout"
    if len(x.tensor.shape) not in CHANNELS_LAST or len(weight.tensor.shape) != len(x.tensor.shape):
        return f"RANK: its input has {len(x.tensor.shape)} dimensions"
    if {x.tensor.device.type, weight.tensor.device.type} != {"cpu"}:
        return "DEVICE: it does not run on the CPU"
    if weight.tensor.dtype not in dtypes or x.tensor.dtype is not weight.tensor.dtype:
        return f"DTYPE: its weight is of {weight.tensor.dtype}"
    if not isinstance(groups, int) or None in geometry:
        return "SYMBOLIC-GEOMETRY: its padding, stride or dilation is a symbol"
    padding, stride, dilation = ([0] if part is None else part for part in geometry)
    known = bias if isinstance(bias, Value) else None
    return Convolution(node, result, x, weight, known, padding, stride, dilation, groups)


def has_channels_last(meta: TensorMeta) -> bool:
    """Whether the channels of an image are next to each other in memory, and its pixels are not."""
    return len(meta.shape) in CHANNELS_LAST and meta.stride[1] == 1 and (meta.stride[-1] != 1 or meta.shape[1] == 1)


def _numbers(operand: object) -> list[int] | None:
    items = list(operand) if isinstance(operand, list | tuple) else [operand]
    numbers = [item for item in items if isinstance(item, int)]
    return numbers if len(numbers) == len(items) else None
