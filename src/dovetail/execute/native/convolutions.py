"""Convolutions by panels and by taps of channels, as machine code: calls of nodes one by one, from Python.

Where a mode of torch wants to see operators, or the processor rounds in another way, the primitive runs instead.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from dovetail.execute.native.convolution_text import convolution_function
from dovetail.execute.native.driver import THREADED
from dovetail.execute.native.machine import driver
from dovetail.execute.native.panel_text import Tile, panel_function
from dovetail.execute.native.panels import CLAMPS, PRODUCT, PRODUCT_SLOTS, WORK, usual_tile
from dovetail.execute.native.vector_activations import CODES
from dovetail.ops.packed import applied
from dovetail.ops.panel_convolutions import PanelConv, taps_shape
from dovetail.torch_compat.fakes import is_fake
from dovetail.torch_compat.native_symbols import no_mode_watches

_PAD, _CONVOLVE = struct.Struct("14q"), struct.Struct("21q2fq")
_PADDED_SLOTS, _SLOTS = 11, 20
_NEW = object()
_MOST_PLANS = 64  # sizes of images that a node remembers


@dataclass(frozen=True, slots=True)
class _Plan:
    """What depends on the size of an input alone. padded: elements of it with padding around; 0 without padding.
    of_pixels: whether it is a product of pixels by a matrix.
    """

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    padded: int
    pads: tuple[int, ...]
    items: int
    sizes: tuple[int, ...]
    of_pixels: bool


def _planned(
    given: torch.Size, size: Sequence[int], padding: Sequence[int], stride: Sequence[int], groups: int, panels: int
) -> _Plan | None:
    """The plan for an input; None where there is nothing to compute, or torch would refuse it."""
    images, channels, height, width = given
    (outputs, inputs, tall, broad), (above, before), (down, across) = size, padding, stride
    high, wide = height + 2 * above, width + 2 * before
    if high < tall or wide < broad or channels != inputs * groups or not images:
        return None
    rows, columns = (high - tall) // down + 1, (wide - broad) // across + 1
    count = rows * columns * outputs
    of_pixels = groups == 1 and (tall, broad, above, before, down, across) == (1, 1, 0, 0, 1, 1)
    sizes = (images, rows, columns, outputs, panels, channels, high, wide, tall, broad, down, across)
    return _Plan(
        shape=(images, outputs, rows, columns),
        stride=(count, 1, columns * outputs, outputs),
        padded=images * high * wide * channels if above or before else 0,
        pads=(images, height, width, channels, above, before, high, wide),
        items=images * count * inputs * tall * broad // WORK + 1,
        sizes=(images * rows * columns, channels, outputs, panels) if of_pixels else sizes,
        of_pixels=of_pixels,
    )


def _fit(taps: torch.Tensor, bias: torch.Tensor | None, size: Sequence[int], groups: int) -> bool:
    """Whether machine code reads what there is: it does not look itself."""
    outputs, inputs, _, _ = size
    if taps.shape != taps_shape(size, groups) or (groups > 1 and (inputs, outputs) != (1, groups)):
        return False
    given = [taps, *([] if bias is None else [bias])]
    is_plain = all(each.dtype is torch.float32 and each.is_contiguous() and not is_fake(each) for each in given)
    return is_plain and (bias is None or bias.shape == (outputs,))


def convolution_call(run: PanelConv, tile: Tile | None = None) -> Callable[..., torch.Tensor]:
    """What is called in a primitive's place, by one node; the same results, but for rounding. tile: None for this
    processor's.
    """
    tile = tile or usual_tile()
    least, most = CLAMPS.get(run.activation, CLAMPS["none"])
    code, drive, pad = CODES.get(run.activation, 0), driver(), convolution_function("pad", tile)
    is_within = run.activation in CLAMPS or bool(code)
    multiply, convolve = panel_function(tile), convolution_function("convolve", tile)
    by_channel = convolution_function("depthwise", tile)
    plans: dict[object, _Plan | None] = {}
    known: list[object] = [None, None]  # taps and a bias that fit

    def call(
        x: torch.Tensor,
        taps: torch.Tensor,
        bias: torch.Tensor | None,
        size: Sequence[int],
        padding: Sequence[int],
        stride: Sequence[int],
        groups: int,
        addend: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if (plan := plans.get(x.shape, _NEW)) is _NEW:
            if len(plans) >= _MOST_PLANS:
                plans.clear()
            plan = plans[x.shape] = _planned(x.shape, size, padding, stride, groups, taps.shape[0])
        if taps is not known[0] or bias is not known[1]:
            if not _fit(taps, bias, size, groups):
                return run(x, taps, bias, size, padding, stride, groups, addend)
            known[:] = taps, bias
        if not isinstance(plan, _Plan) or x.dtype is not torch.float32 or not no_mode_watches() or is_fake(x):
            return run(x, taps, bias, size, padding, stride, groups, addend)
        if not x.is_contiguous(memory_format=torch.channels_last) or x.is_neg():
            x = x.resolve_neg().contiguous(memory_format=torch.channels_last)
        made = x.new_empty_strided(plan.shape, plan.stride)
        table, given, start = b"", x, x.data_ptr()
        if plan.padded:
            given = x.new_empty(plan.padded)
            table, start = _PAD.pack(pad, 2, _PADDED_SLOTS, 1, given.data_ptr(), start, *plan.pads), given.data_ptr()
        out = made.data_ptr()
        pointers = (out, start, taps.data_ptr(), out if bias is None else bias.data_ptr())
        is_alone = addend is None and is_within
        clamps = (least, most, code) if is_alone else (*CLAMPS["none"], 0)
        rest = (plan.items, *pointers, *plan.sizes, bias is not None, *clamps)
        if plan.of_pixels:
            table = PRODUCT.pack(multiply, 4, PRODUCT_SLOTS, *rest)
        else:
            table += _CONVOLVE.pack(convolve if groups == 1 else by_channel, 4, _SLOTS, *rest)
        threads = torch.get_num_threads() if plan.items >= THREADED else 1
        if drive(table, 1 if given is x else 2, threads, 0):
            return run(x, taps, bias, size, padding, stride, groups, addend)
        if addend is not None:
            made.add_(addend)
        return made if is_alone else applied(run.activation, made)

    return call
