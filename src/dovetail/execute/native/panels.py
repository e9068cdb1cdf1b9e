"""Products by weights in panels, as machine code: calls of nodes one by one, from Python.

Where a mode of torch wants to see operators, or the processor rounds in another way, the primitive runs instead.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from functools import cache

import torch

from dovetail.execute.native.driver import LOOSE, THREADED
from dovetail.execute.native.machine import driver, has_vectors, unavailable
from dovetail.execute.native.panel_text import panel_function
from dovetail.execute.native.tile_text import NARROW, WIDE, Tile
from dovetail.execute.native.vector_activations import CODES
from dovetail.ops.packed import applied
from dovetail.ops.panels import PanelLinear, check_panels
from dovetail.torch_compat.fakes import is_fake
from dovetail.torch_compat.native_symbols import no_mode_watches

WORK = 16  # multiplications that count as one item of a row of the driver's table
CLAMPS = {"none": (-math.inf, math.inf), "relu": (0.0, math.inf), "relu6": (0.0, 6.0)}

PRODUCT, PRODUCT_SLOTS = struct.Struct("13q2fq"), 12
"""A row of the driver's table: its form, and its slots."""

Product = Callable[[torch.Tensor, torch.Tensor, int, torch.Tensor | None], torch.Tensor]
Finish = tuple[float, float, int]
"""What a kernel does with a sum: the least and the largest result, and the code of an activation."""


def finish_of(activation: str) -> Finish | None:
    """How a kernel applies an activation; None where it does not."""
    if activation in CODES:
        return (*CLAMPS["none"], CODES[activation])
    return (*CLAMPS[activation], 0) if activation in CLAMPS else None


def items_of(rows: int, inputs: int, outputs: int) -> int:
    """The items of a row of the driver's table, for a product."""
    return rows * inputs * outputs // WORK + 1


def usual_tile() -> Tile:
    """The tiles for this processor."""
    return WIDE if has_vectors(WIDE.lanes) else NARROW


@cache
def multiplies_panels() -> bool:
    """Whether machine code for such products can be made here."""
    return not unavailable() and has_vectors(NARROW.lanes)


def panel_call(run: PanelLinear, tile: Tile | None = None) -> Product:
    """What is called in a primitive's place, by one node; the same results, but for rounding. tile: None for this
    processor's.
    """
    finish = finish_of(run.activation)
    rest, (least, most, code) = ("none", finish) if finish else (run.activation, (*CLAMPS["none"], 0))
    drive, function, pack = driver(), panel_function(tile or usual_tile()), PRODUCT.pack
    known: list[object] = [None, None]  # a weight and a bias that fit

    def call(x: torch.Tensor, panels: torch.Tensor, outputs: int, bias: torch.Tensor | None = None) -> torch.Tensor:
        if panels is not known[0] or bias is not known[1]:
            check_panels(x, panels, outputs, bias)
            if not panels.is_contiguous() or (bias is not None and not bias.is_contiguous()):
                return run(x, panels, outputs, bias)
            known[:] = panels, bias
        count, inputs, _ = panels.shape
        if x.shape[-1] != inputs or x.dtype is not torch.float32 or not no_mode_watches() or is_fake(x):
            return run(x, panels, outputs, bias)
        if not x.is_contiguous() or x.is_neg():
            x = x.resolve_neg().contiguous()
        made = x.new_empty((*x.shape[:-1], outputs))
        rows = made.numel() // outputs
        if rows:
            items = items_of(rows, inputs, outputs)
            out, given = made.data_ptr(), x.data_ptr()
            pointers = (out, given, panels.data_ptr(), out if bias is None else bias.data_ptr())
            sizes = (rows, inputs, outputs, count, bias is not None)
            table = pack(function, 4 | LOOSE, PRODUCT_SLOTS, items, *pointers, *sizes, least, most, code)
            if drive(table, 1, torch.get_num_threads() if items >= THREADED else 1, 0):
                return run(x, panels, outputs, bias)
        return made if rest == "none" else applied(rest, made)

    return call
