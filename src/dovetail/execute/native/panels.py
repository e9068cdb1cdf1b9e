"""Products by weights in panels, as machine code: calls of nodes one by one, from Python.

Where a mode of torch wants to see operators, or the processor rounds in another way, the primitive runs instead.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from functools import cache

import torch

from dovetail.execute.native.driver import THREADED
from dovetail.execute.native.machine import driver, has_vectors, unavailable
from dovetail.execute.native.panel_text import NARROW, WIDE, Tile, panel_function
from dovetail.execute.native.vector_activations import CODES
from dovetail.ir.prim import Prim
from dovetail.ir.program import Node
from dovetail.ir.text import Names
from dovetail.ops.packed import applied
from dovetail.ops.panels import PanelLinear
from dovetail.torch_compat.fakes import is_fake
from dovetail.torch_compat.native_symbols import no_mode_watches

_WORK = 64  # multiplications that count as one item of a row of the driver's table
_CLAMPS = {"none": (-math.inf, math.inf), "relu": (0.0, math.inf), "relu6": (0.0, 6.0)}

Product = Callable[[torch.Tensor, torch.Tensor, int, torch.Tensor | None], torch.Tensor]


@cache
def multiplies_panels() -> bool:
    """Whether machine code for such products can be made here."""
    return not unavailable() and has_vectors(NARROW.lanes)


@cache
def panel_call(run: PanelLinear, tile: Tile | None = None) -> Product:
    """What is called in a primitive's place; the same results, but for rounding. tile: None for this processor's."""
    least, most = _CLAMPS.get(run.activation, _CLAMPS["none"])
    code = CODES.get(run.activation, 0)
    rest = "none" if run.activation in _CLAMPS or code else run.activation
    tile = tile or (WIDE if has_vectors(WIDE.lanes) else NARROW)
    drive, function, pack = driver(), panel_function(tile), struct.Struct("13q2fq").pack

    def call(x: torch.Tensor, panels: torch.Tensor, outputs: int, bias: torch.Tensor | None = None) -> torch.Tensor:
        count, inputs, _ = panels.shape
        if x.shape[-1] != inputs or not no_mode_watches() or is_fake(x):
            return run(x, panels, outputs, bias)
        if not x.is_contiguous() or x.is_neg():
            x = x.resolve_neg().contiguous()
        made = x.new_empty((*x.shape[:-1], outputs))
        rows = made.numel() // outputs
        if rows:
            items = rows * inputs * outputs // _WORK + 1
            out, given = made.data_ptr(), x.data_ptr()
            pointers = (out, given, panels.data_ptr(), out if bias is None else bias.data_ptr())
            sizes = (rows, inputs, outputs, count, bias is not None)
            table = pack(function, 4, 12, items, *pointers, *sizes, least, most, code)
            if drive(table, 1, torch.get_num_threads() if items >= THREADED else 1, 0):
                return run(x, panels, outputs, bias)
        return made if rest == "none" else applied(rest, made)

    return call


def call_of(names: Names, node: Node) -> str:
    """The call expression of a node that multiplies by panels."""
    assert isinstance(node.target, Prim) and isinstance(node.target.run, PanelLinear), "others are not claimed"
    return f"{names.constant(panel_call(node.target.run), node.target.name)}({names.arguments(node)})"
