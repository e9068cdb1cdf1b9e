"""Convolutions by panels and by taps of channels, as machine code: calls of nodes one by one, from Python.

Where a mode of torch wants to see operators, or the processor rounds in another way, the primitive runs instead.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod

import torch

from dovetail.execute.native.depthwise_text import depthwise_text
from dovetail.execute.native.direct_text import MOST_PIXELS, direct_text
from dovetail.execute.native.driver import LOOSE, THREADED
from dovetail.execute.native.machine import driver, function_of
from dovetail.execute.native.padded_text import pad_text, planes_text
from dovetail.execute.native.panel_text import panel_function
from dovetail.execute.native.panels import CLAMPS, PRODUCT, PRODUCT_SLOTS, Finish, finish_of, items_of, usual_tile
from dovetail.execute.native.rows import table_row
from dovetail.execute.native.tile_text import Tile
from dovetail.execute.native.winograd_text import winograd_text
from dovetail.execute.native.winograd_transforms import winograd_weight_text
from dovetail.ops.few_products import KERNEL, Tiling, tiling_of
from dovetail.ops.packed import applied
from dovetail.ops.panel_convolutions import PanelConv, around, taps_shape
from dovetail.ops.panels import MOST_ROOMS, WIDTH
from dovetail.torch_compat.fakes import is_fake
from dovetail.torch_compat.native_symbols import no_mode_watches

_CONVOLVE, _SLOTS = struct.Struct("34q2fq"), 33
_NEW = object()
_MOST_PLANS = 64  # sizes of images, and numbers of threads, that a node remembers
_CACHED, _NEAREST = 1 << 17, 1 << 13  # elements of the input that a chunk of pixels reads, about: see `_passes`
_SMALL_WEIGHT, _FEWEST_NEAREST = 1 << 18, 36  # elements; pixels of a chunk
_FEWEST_PIXELS, _FEWEST_JOBS = 48, 16  # of a chunk; of a convolution, for threads to share
_FULL = 12  # pixels of a chunk are a multiple of it: those of a tile, or some tiles
_BLOCK = 256  # products that are summed by themselves, about: rounding grows as in `panel_text`
_BY_CHANNEL = 4  # times as long takes a product where channels are convolved by themselves
_FILLED = 4  # elements of a weight that count as one item where it is transformed
_LARGE = 1 << 16  # elements of an image with padding around from which on it is copied in parts
_WINOGRAD = {"winograd": winograd_text, "winograd_weight": winograd_weight_text}
_NO_FINISH: Finish = (*CLAMPS["none"], 0)


@cache
def convolution_function(kind: str, tile: Tile) -> int:
    """The address of the function of such rows. kind: pad, planes, pixels, direct, depthwise, winograd or
    winograd_weight.
    """
    if kind == "pixels":
        return panel_function(tile)
    copies = {"pad": lambda _: pad_text(), "planes": lambda tile: planes_text(tile.lanes)}
    text = {**copies, "direct": direct_text, "depthwise": depthwise_text, **_WINOGRAD}[kind](tile)
    found = function_of(text.replace("NAME", kind), kind, ())
    assert found is not None, "it calls nothing"
    return found


@dataclass(frozen=True, slots=True)
class Plan:
    """What depends on the sizes alone. shape, stride: of the result. room: elements of memory that the row needs: the
    input with padding around, whole or in rooms (`padded_text`), or what is transformed (`winograd_text`). filled:
    items and sizes of a row that runs before and puts the input there, or the weight; none where there is no such row.
    kind: of the row, see `convolution_function`; `pixels` stands for a product of pixels by a matrix.
    """

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    room: int
    filled: tuple[int, ...]
    items: int
    sizes: tuple[int, ...]
    kind: str

    @property
    def fills_weight(self) -> bool:
        """Whether the row before transforms the weight; else it copies the input, which is read where it puts it."""
        return self.kind == "winograd"


def planned(
    given: Sequence[int],
    size: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
    groups: int,
    panels: int,
    *,
    copies: bool = False,
    adds: bool = False,
) -> Plan | None:
    """The plan for an input; None where there is nothing to compute, torch would refuse it, or some result would read
    nothing but padding. copies: the input lies in another way, and is copied in any case. adds: something is added.
    """
    images, channels, height, width = given
    (outputs, inputs, tall, broad), (down, across) = size, stride
    above, before, below, behind = around(padding)
    pads = above, before
    high, wide = height + above + below, width + before + behind
    if high < tall or wide < broad or channels != inputs * groups or not images or not height or not width:
        return None
    if max(above, below) >= tall or max(before, behind) >= broad:
        return None
    rows, columns = (high - tall) // down + 1, (wide - broad) // across + 1
    count = rows * columns * outputs
    if not copies and groups == 1:
        tiling = tiling_of(size, stride, images, (rows, columns), torch.get_num_threads())
        if tiling is not None:
            return _winograd_plan(given, size, (rows, columns), pads, tiling)
    of_pixels = groups == 1 and not adds and (tall, broad, down, across) == (1, 1, 1, 1)
    is_copied = copies or (groups == 1 and any(padding))
    items = items_of(images * rows * columns, inputs * tall * broad, outputs) * (1 if groups == 1 else _BY_CHANNEL)
    area = (high, wide) if is_copied else (height, width)
    padded = images * high * wide * channels if is_copied else 0
    is_near = outputs * inputs * tall * broad <= _SMALL_WEIGHT and padded < _LARGE
    passes = _passes(images * rows * columns, columns, area[1] * inputs * down, broad * inputs, panels, is_near)
    rooms = (0, 0)
    if padded >= _LARGE and not copies:
        lines = _lines_read(passes[0], (rows, columns), (high, down, tall))
        rooms = min(MOST_ROOMS, torch.get_num_threads(), -(-items // THREADED)), lines * wide * channels
        rooms = rooms if prod(rooms) < padded else (0, 0)
    before_all = pads if prod(rooms) or not is_copied else (0, 0)
    sizes = (images, rows, columns, outputs, panels, channels, *area, tall, broad, down, across, *before_all, *passes)
    return Plan(
        shape=(images, outputs, rows, columns),
        stride=(count, 1, columns * outputs, outputs),
        room=prod(rooms) or padded,
        filled=(padded, images, height, width, channels, *pads, high, wide) if padded and not prod(rooms) else (),
        items=items,
        sizes=(images * rows * columns, channels, outputs, panels) if of_pixels else (*sizes, height, width, *rooms, 0),
        kind="pixels" if of_pixels else "direct" if groups == 1 else "depthwise",
    )


def _winograd_plan(
    given: Sequence[int], size: Sequence[int], result: tuple[int, int], pads: tuple[int, int], tiling: Tiling
) -> Plan:
    """The plan of a convolution with fewer products. pads: rows above and columns before the image."""
    (images, _, height, width), (outputs, inputs, *_), (rows, columns) = given, size, result
    panels = -(-outputs // WIDTH)
    sizes = (images, rows, columns, outputs, panels, inputs, height, width, KERNEL, KERNEL, 1, 1, *pads)
    told = (tiling.chunk, tiling.is_given, tiling.is_whole, height, width, tiling.rooms, tiling.room, 0)
    return Plan(
        shape=(images, outputs, rows, columns),
        stride=(rows * columns * outputs, 1, columns * outputs, outputs),
        room=tiling.elements,
        filled=(-(-outputs * inputs // _FILLED), inputs, outputs) if tiling.is_given else (),
        items=items_of(images * rows * columns, inputs * KERNEL * KERNEL, outputs),
        sizes=(*sizes, *told),
        kind="winograd",
    )


def _lines_read(pixels: int, result: tuple[int, int], lines: tuple[int, int, int]) -> int:
    """How many lines of the input a chunk of pixels reads at most, and those between two images. result: rows and
    columns. lines: of an image, from one row of results to the next, and of the weight.
    """
    (rows, columns), (high, down, tall) = result, lines
    most = (pixels + columns - 2) // columns + 1  # rows of which there is some pixel
    images = (most + rows - 2) // rows  # that are left for another one
    return (most - 1) * down + tall + images * max(0, high - rows * down)


def _passes(pixels: int, columns: int, row_size: int, line: int, panels: int, is_near: bool) -> tuple[int, int, int]:
    """Pixels of a chunk, and lines of the weight and elements of a line that are summed at a time. row_size: elements
    of the input behind a row of results. line: elements of a line of the weight. is_near: what a chunk reads stays in
    the nearest cache, for the weight, which is read once for each chunk, stays in the next one.
    """
    in_cache = max(1, (_NEAREST if is_near else _CACHED) // row_size) * columns
    in_cache = max(in_cache, _FEWEST_NEAREST if is_near else 1)
    shared = max(_FEWEST_PIXELS, -(-pixels * panels // _FEWEST_JOBS))
    chunk = min(in_cache, shared, MOST_PIXELS)
    chunk = min(pixels, -(-chunk // _FULL) * _FULL, MOST_PIXELS)
    parts = max(1, round(line / _BLOCK))
    return chunk, max(1, _BLOCK // line), -(-line // parts)


def _fit(taps: torch.Tensor, bias: torch.Tensor | None, size: Sequence[int], groups: int) -> bool:
    """Whether machine code reads what there is: it does not look itself."""
    outputs, inputs, _, _ = size
    if taps.shape != taps_shape(size, groups) or (groups > 1 and (inputs, outputs) != (1, groups)):
        return False
    given = [taps, *([] if bias is None else [bias])]
    is_plain = all(each.dtype is torch.float32 and each.is_contiguous() and not is_fake(each) for each in given)
    return is_plain and (bias is None or bias.shape == (outputs,))


def _lies_as(addend: torch.Tensor, made: torch.Tensor) -> bool:
    """Whether what is added can be read where the result is written."""
    fits = addend.shape == made.shape and addend.stride() == made.stride() and addend.dtype is made.dtype
    return fits and addend.device == made.device and not addend.is_neg() and not is_fake(addend)


def convolution_call(run: PanelConv, tile: Tile | None = None) -> Callable[..., torch.Tensor]:
    """What is called in a primitive's place, by one node; the same results, but for rounding. tile: None for this
    processor's.
    """
    tile = tile or usual_tile()
    finish, drive = finish_of(run.activation), driver()
    fill = [convolution_function(kind, tile) for kind in ("pad", "winograd_weight")]
    functions = {kind: convolution_function(kind, tile) for kind in ("pixels", "direct", "winograd", "depthwise")}
    plans: dict[object, Plan | None] = {}
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
        key = x.shape, torch.get_num_threads()
        if (plan := plans.get(key, _NEW)) is _NEW:
            if len(plans) >= _MOST_PLANS:
                plans.clear()
            adds = addend is not None and groups == 1
            plan = plans[key] = planned(x.shape, size, padding, stride, groups, taps.shape[0], adds=adds)
        if taps is not known[0] or bias is not known[1]:
            if not _fit(taps, bias, size, groups):
                return run(x, taps, bias, size, padding, stride, groups, addend)
            known[:] = taps, bias
        if not isinstance(plan, Plan) or x.dtype is not torch.float32 or not no_mode_watches() or is_fake(x):
            return run(x, taps, bias, size, padding, stride, groups, addend)
        if not x.is_contiguous(memory_format=torch.channels_last) or x.is_neg():
            x = x.resolve_neg().contiguous(memory_format=torch.channels_last)
        made = x.new_empty_strided(plan.shape, plan.stride)
        table, start = b"", x.data_ptr()
        out = made.data_ptr()
        room = out
        if plan.room:
            memory = x.new_empty(plan.room)
            room = memory.data_ptr()
        if plan.filled:
            items, *sizes = plan.filled
            given = [room, taps.data_ptr() if plan.fills_weight else start]
            table = table_row(fill[plan.fills_weight], items, given, (), struct.pack(f"{len(sizes)}q", *sizes))
            start = start if plan.fills_weight else room
        pointers = (out, start, taps.data_ptr(), out if bias is None else bias.data_ptr())
        is_added = addend is not None and groups == 1 and _lies_as(addend, made)
        within = finish if addend is None or is_added else None
        finishes = within or _NO_FINISH
        function = functions[plan.kind]
        if plan.kind == "pixels":
            table = PRODUCT.pack(
                function, 4 | LOOSE, PRODUCT_SLOTS, plan.items, *pointers, *plan.sizes, bias is not None, *finishes
            )
        else:
            more = addend.data_ptr() if is_added and addend is not None else out
            slots = (*pointers, more, room, *plan.sizes, bias is not None, is_added, *finishes)
            table += _CONVOLVE.pack(function, 6 | LOOSE, _SLOTS, plan.items, *slots)
        threads = torch.get_num_threads() if plan.items >= THREADED else 1
        if drive(table, 2 if plan.filled else 1, threads, 0):
            return run(x, taps, bias, size, padding, stride, groups, addend)
        if addend is not None and not is_added:
            made.add_(addend)
        return made if within else applied(run.activation, made)

    return call
