"""A primitive of largest elements of parts of images, without where they are: what inference reads of a pool.

    y = prims.MAX_POOL(x, kernel, stride, padding, ceil_mode)

It is made of `max_pool2d_with_indices` where a program runs, and is in no file. Each list has two numbers.
"""

from __future__ import annotations

import torch

from dovetail.ir.prim import Prim
from dovetail.ir.program import Node, Operand, Value
from dovetail.ops.arguments import arguments_of

_IMAGE = 4


def _max_pool(
    x: torch.Tensor, kernel: list[int], stride: list[int], padding: list[int], ceil_mode: bool
) -> torch.Tensor:
    made: torch.Tensor = torch.ops.aten.max_pool2d_with_indices.default(x, kernel, stride, padding, [1, 1], ceil_mode)[
        0
    ]
    return made


MAX_POOL = Prim("max_pool", _max_pool, "prims.MAX_POOL", takes_memory=True)


def max_pool_of(node: Node) -> tuple[Operand, ...] | None:
    """The arguments of `MAX_POOL` for a node that pools images of float32 on a CPU with channels last, of known sizes;
    None for others. Not checked: that its indices are read by nobody.
    """
    if node.target is not torch.ops.aten.max_pool2d_with_indices.default:
        return None
    arguments, (result, *_) = arguments_of(node), node.results()
    x, kernel = arguments["self"], _pair(arguments["kernel_size"])
    stride = _pair(arguments.get("stride") or arguments["kernel_size"])
    padding, dilation = (_pair(arguments.get(name, usual)) for name, usual in (("padding", 0), ("dilation", 1)))
    ceil_mode = arguments.get("ceil_mode", False)
    if not isinstance(x, Value) or None in (kernel, stride, padding) or dilation != [1, 1]:
        return None
    is_usual = isinstance(ceil_mode, bool) and is_known_image(x) and is_known_image(result)
    return (x, kernel, stride, padding, ceil_mode) if is_usual else None


def _pair(numbers: Operand) -> list[int] | None:
    """Two known numbers; one stands for both."""
    found = [*numbers] if isinstance(numbers, list | tuple) else [numbers]
    known = [each for each in found if isinstance(each, int)]
    return (known * 2)[:2] if known and len(known) == len(found) else None


def is_known_image(value: Value, *, of_any_count: bool = False) -> bool:
    """Whether a tensor is images of float32 on a CPU with channels last, of known sizes, and not empty. of_any_count:
    how many images there are need not be known.
    """
    meta = value.tensor
    if len(meta.shape) != _IMAGE or meta.dtype is not torch.float32:
        return False
    sizes = [size for size in meta.shape[of_any_count:] if isinstance(size, int)]
    if len(sizes) < _IMAGE - of_any_count:
        return False
    channels, height, width = sizes[-3:]
    strides = (height * width * channels, 1, width * channels, channels)
    return tuple(meta.stride) == strides and meta.device.type == "cpu" and min(sizes) > 0
