"""Primitives of convolutions by weights that machine code reads in order: panels of 32 outputs, or taps of channels.

    taps = prims.PACK_TAPS(weight, groups)                       # (outputs, inputs / groups, height, width), once
    y = prims.panel_conv("relu")(x, taps, bias, size, padding, stride, groups, addend)

They are made of `prims.packed_conv` where a program runs, and are in no file. Images are channels last. A weight of one
group is laid out like that of a linear layer, over (height, width, inputs); of a group for each channel, as
(height * width, channels). Machine code (`execute.native.convolutions`) reads them; by itself the primitive runs
torch's operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import cast

import torch

from dovetail.ir.prim import Prim
from dovetail.ir.program import Node, Value
from dovetail.ir.sizes import Size
from dovetail.ops.arguments import arguments_of
from dovetail.ops.few_products import Tiling, tiling_of
from dovetail.ops.max_pools import is_known_image
from dovetail.ops.packed import applied, checked_activation
from dovetail.ops.panels import PACK_PANELS, WIDTH, plain_weight
from dovetail.torch_compat.fakes import is_fake


def _pack_taps(weight: torch.Tensor, groups: int, size: object = None) -> torch.Tensor:
    if groups == 1:
        rows = weight.permute(0, 2, 3, 1).reshape(weight.shape[0], -1)
        return cast(torch.Tensor, PACK_PANELS(rows))
    return weight.flatten(1).t().contiguous()


# size: what the input is expected to have; taps are the same for any.
PACK_TAPS = Prim("pack_taps", _pack_taps, "prims.PACK_TAPS")


def taps_shape(size: Sequence[int], groups: int) -> tuple[int, ...]:
    """The shape of taps of a weight of a size."""
    outputs, inputs, height, width = size
    if groups != 1:
        return height * width * inputs, outputs
    return -(-outputs // WIDTH), height * width * inputs, WIDTH


def plain_kernel(taps: torch.Tensor, size: Sequence[int]) -> torch.Tensor:
    """The weight of a size that taps hold, each bit of it; contiguous."""
    outputs, inputs, height, width = size
    if taps.dim() == 2:  # (height * width, channels)
        return taps.t().reshape(outputs, inputs, height, width)
    return plain_weight(taps, outputs).view(outputs, height, width, inputs).permute(0, 3, 1, 2).contiguous()


def around(padding: Sequence[int]) -> tuple[int, int, int, int]:
    """Rows above, columns before, rows below and columns behind: of two numbers, the same on both sides."""
    above, before, below, behind = (*padding, *padding)[:4]
    return above, before, below, behind


@dataclass(frozen=True, slots=True)
class PanelConv:
    """`activation(convolution(x, weight, bias) + addend)`, channels last. size: of the weight. padding: rows above and
    columns before, and then rows below and columns behind, where these are others.
    """

    activation: str

    def __call__(
        self,
        x: torch.Tensor,
        taps: torch.Tensor,
        bias: torch.Tensor | None,
        size: Sequence[int],
        padding: Sequence[int],
        stride: Sequence[int],
        groups: int,
        addend: torch.Tensor | None = None,
    ) -> torch.Tensor:
        weight = taps.new_empty(size) if is_fake(taps) or taps.is_meta else plain_kernel(taps, size)
        above, before, below, behind = around(padding)
        tiling = _tiling(x, size, (above, before, below, behind), stride) if groups == 1 else None
        if tiling is not None:
            x.new_empty(tiling.elements)  # as machine code does: it takes as much
        if any(padding):  # around the image, as machine code does it
            x = torch.nn.functional.pad(x, (before, behind, above, below))
        made = torch.convolution(x, weight, bias, stride, [0, 0], [1, 1], False, [0, 0], groups)
        made = torch.empty_like(made, memory_format=torch.channels_last).copy_(made)
        return applied(self.activation, made if addend is None else made.add_(addend))


def _tiling(
    x: torch.Tensor, size: Sequence[int], padding: tuple[int, int, int, int], stride: Sequence[int]
) -> Tiling | None:
    """How machine code computes it with fewer products, of known sizes."""
    if not all(isinstance(number, int) for number in x.shape):
        return None
    above, before, below, behind = padding
    rows, columns = x.shape[2] + above + below - size[2] + 1, x.shape[3] + before + behind - size[3] + 1
    return tiling_of(size, stride, x.shape[0], (rows, columns), torch.get_num_threads())


@cache
def panel_conv(activation: str) -> Prim:
    """The primitive `(x, taps, bias, size, padding, stride, groups, addend=None)`; see `PanelConv`.

    activation: of `ops.packed.ACTIVATIONS`. Raises: ValueError for an unknown activation.
    """
    name = "panel_conv" if activation == "none" else f"panel_conv_{activation}"
    run = PanelConv(checked_activation(activation))
    return Prim(name, run, f"prims.panel_conv({activation!r})", takes_memory=True)


# --- what goes with convolutions --------------------------------------------------------------------------------------

_IMAGE = 4


def zeros_around(node: Node) -> tuple[int, int, int, int] | None:
    """Rows above, columns before, rows below and columns behind that a node puts around images, of zeros; None where it
    does something else.
    """
    if node.target is not torch.ops.aten.constant_pad_nd.default or node.kwargs:
        return None
    x, numbers, *value = node.args
    if not isinstance(x, Value) or len(x.tensor.shape) != _IMAGE or any(each != 0 for each in value):
        return None
    pads = [each for each in numbers if isinstance(each, int)] if isinstance(numbers, list | tuple) else []
    if len(pads) != _IMAGE or min(pads) < 0 or len(node.results()) != 1:
        return None
    before, behind, above, below = pads
    return above, before, below, behind


def is_pixel_mean(node: Node) -> bool:
    """Whether a node gives the means of the channels of images of float32 with channels last, over all pixels: as a
    mean, or as a pool of which one part is the whole image.
    """
    x = node.args[0] if node.args else None
    if not isinstance(x, Value) or not x.is_tensor or len(node.results()) != 1:
        return False
    return is_known_image(x) and (_is_mean_of_pixels(node) or _is_pool_of_all(node, x.tensor.shape[2:]))


def _is_mean_of_pixels(node: Node) -> bool:
    if node.target is not torch.ops.aten.mean.dim:
        return False
    arguments = arguments_of(node)
    dims = arguments.get("dim")
    if not isinstance(dims, list | tuple) or arguments.get("dtype") is not None:
        return False
    summed = [dim % _IMAGE for dim in dims if isinstance(dim, int)]
    return len(dims) == len(summed) and tuple(sorted(summed)) == _PIXELS


def _is_pool_of_all(node: Node, size: Sequence[Size]) -> bool:
    if node.target is not torch.ops.aten.avg_pool2d.default:
        return False
    arguments = arguments_of(node)
    kernel, padding = arguments.get("kernel_size"), arguments.get("padding", (0, 0))
    if not isinstance(kernel, list | tuple) or not isinstance(padding, list | tuple):
        return False
    if any(each != 0 for each in padding) or arguments.get("divisor_override") is not None:
        return False
    parts = [*kernel, *kernel][:2]
    is_one = tuple(node.results()[0].tensor.shape[2:]) == (1, 1)
    return is_one and all(
        isinstance(part, int) and isinstance(all_, int) and part >= all_ for part, all_ in zip(parts, size, strict=True)
    )


_PIXELS = (2, 3)


def _pixel_mean(x: torch.Tensor, keeps_dims: bool, is_image: bool = False) -> torch.Tensor:
    made = x.mean(_PIXELS, keeps_dims)
    images, channels = x.shape[:2]
    return made.as_strided((images, channels, 1, 1), (channels, 1, channels, channels)) if is_image else made


# The means of the channels of images, (x, keeps_dims, is_image). is_image: with the strides of an image, as of pools.
PIXEL_MEAN = Prim("pixel_mean", _pixel_mean, "prims.PIXEL_MEAN")
