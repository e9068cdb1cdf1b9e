"""LLVM's text of products by weights in panels: tiles of rows by a panel, kept in registers while they are summed.

    slots: items, pointers (result, x, panels, bias), rows, inputs, outputs, panels, whether there is a bias, the least
    and the largest number that a result may be (two `float`), the activation

Items are shares of the work: panels are divided in proportion, or pairs of a chunk of rows and a panel where there are
few panels, so that threads share the pixels of an image, too. One row reads several panels at once, side by side. Sums
are of equal blocks of up to 256 products (64 where there are few rows), added one after the other, so that rounding
grows as in BLAS. NaN stays NaN where results are clamped. Chunks of rows are equal, so that no small one reads all
panels again.

Source: Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication" (2008); Van Zee and van de Geijn,
"BLIS" (2015), for micro-panels.
"""

from __future__ import annotations

from functools import cache

from dovetail.execute.native.machine import function_of
from dovetail.execute.native.tile_text import (
    PanelLoop,
    Tile,
    activations_text,
    declarations,
    groups_text,
    panel_loop,
    tiles_text,
    zeros,
)
from dovetail.execute.native.vector_activations import CODES
from dovetail.ops.panels import WIDTH

_BLOCK = 256  # products of a sum that is added to others
_FEW, _SHORT = 4, 64  # of so many rows at most, blocks are shorter: BLAS rounds less there, too
_CHUNK, _MORE = 96, 16  # rows whose part of the input stays in the cache while all panels are read; and a few more
_PAIRED = 8  # of fewer panels, threads share pairs of a chunk and a panel
_NAME = "panels"


@cache
def panel_function(tile: Tile) -> int:
    """The address of the function of such rows, in tiles of a size."""
    found = function_of(panel_text(tile), _NAME, ())
    assert found is not None, "it calls nothing"
    return found


def panel_text(tile: Tile) -> str:
    """The module, for tiles of a size."""
    tiles = tiles_text(tile, _NAME) + groups_text(tile, _NAME)
    return declarations(tile) + tiles + activations_text(tile, _NAME) + _all_tiles(tile)


def _all_tiles(tile: Tile) -> str:
    """The function of a row: chunks of rows, panels, blocks of products, tiles, in this order."""
    chosen = " ".join(f"i64 {code}, label %{name}" for name, code in CODES.items())
    applied = "\n".join(
        f"{name}:\n  call void @{_NAME}_{name}(ptr %op, i64 %high_rows, i64 %outputs, i64 %columns)\n"
        "  br label %next_panel"
        for name in CODES
    )
    loop = PanelLoop(
        x="%xc",
        down="%inputs",
        rows="%high_rows",
        out="%oc",
        out_down="%outputs",
        panels="%panels_left",
        sums="%most_sums",
        least="%least",
        most="%most",
        after="activate",
    )
    text = _LOOPS.replace("LOOP", panel_loop(tile, _NAME, loop))
    for name, lines in (("ACTIVATIONS", chosen), ("ACTIVATE", applied)):
        text = text.replace(name, lines)
    numbers = {
        "MORE_ROWS": _CHUNK - _MORE - 1,
        "WIDTH": WIDTH,
        "BLOCK": _BLOCK,
        "CHUNK": _CHUNK,
        "FEW": _FEW,
        "SHORT": _SHORT,
        "PAIRED": _PAIRED,
    }
    numbers |= {"MOST_LESS": tile.rows - 1, "MOST": tile.rows}
    for name, number in numbers.items():
        text = text.replace(name, str(number))
    declared = "declare i64 @llvm.smax.i64(i64, i64)\n"
    return declared + zeros(tile, _NAME) + text.replace("NAME", _NAME)


_LOOPS = """
define internal i64 @NAME_parts(i64 %rows, i64 %size) {
entry:
  %is_none = icmp eq i64 %size, 0
  %by = select i1 %is_none, i64 1, i64 %size
  %up = add i64 %rows, %by
  %less = sub i64 %up, 1
  %parts = sdiv i64 %less, %by
  ret i64 %parts
}

define void @NAME(ptr %row, i64 %from, i64 %to) {
entry:
  %items = load i64, ptr %row
  %p1 = getelementptr i64, ptr %row, i64 1
  %out = load ptr, ptr %p1
  %p2 = getelementptr i64, ptr %row, i64 2
  %x = load ptr, ptr %p2
  %p3 = getelementptr i64, ptr %row, i64 3
  %panels = load ptr, ptr %p3
  %p4 = getelementptr i64, ptr %row, i64 4
  %bias = load ptr, ptr %p4
  %p5 = getelementptr i64, ptr %row, i64 5
  %rows = load i64, ptr %p5
  %p6 = getelementptr i64, ptr %row, i64 6
  %inputs = load i64, ptr %p6
  %p7 = getelementptr i64, ptr %row, i64 7
  %outputs = load i64, ptr %p7
  %p8 = getelementptr i64, ptr %row, i64 8
  %count = load i64, ptr %p8
  %p9 = getelementptr i64, ptr %row, i64 9
  %biased = load i64, ptr %p9
  %has_bias = icmp ne i64 %biased, 0
  %p10 = getelementptr i64, ptr %row, i64 10
  %least = load float, ptr %p10
  %p11 = getelementptr float, ptr %p10, i64 1
  %most = load float, ptr %p11
  %p12 = getelementptr i64, ptr %row, i64 11
  %activation = load i64, ptr %p12
  %items_less = sub i64 %items, 1
  %rows_up = add i64 %rows, MORE_ROWS
  %chunks_up = sdiv i64 %rows_up, CHUNK
  %chunks_most = call i64 @llvm.smax.i64(i64 %chunks_up, i64 1)
  %chunk_up = add i64 %rows, %chunks_most
  %chunk_less = sub i64 %chunk_up, 1
  %chunk_rows = sdiv i64 %chunk_less, %chunks_most
  %chunks = call i64 @NAME_parts(i64 %rows, i64 %chunk_rows)
  %by_pairs = icmp slt i64 %count, PAIRED
  %turns = select i1 %by_pairs, i64 %chunks, i64 1
  %jobs = mul i64 %turns, %count
  %f0 = mul i64 %from, %jobs
  %f1 = add i64 %f0, %items_less
  %first = sdiv i64 %f1, %items
  %t0 = mul i64 %to, %jobs
  %t1 = add i64 %t0, %items_less
  %end = sdiv i64 %t1, %items
  %some_panels = icmp slt i64 %first, %end
  %some_rows = icmp sgt i64 %rows, 0
  %some = and i1 %some_panels, %some_rows
  %is_few = icmp sle i64 %rows, FEW
  %blocks = call i64 @NAME_parts(i64 %inputs, i64 BLOCK)
  %even = call i64 @NAME_parts(i64 %inputs, i64 %blocks)
  %most_sums = select i1 %is_few, i64 SHORT, i64 %even
  %end_less = sub i64 %end, 1
  %some_count = call i64 @llvm.smax.i64(i64 %count, i64 1)
  %pair_chunk = sdiv i64 %first, %some_count
  %pair_last = sdiv i64 %end_less, %some_count
  %chunks_less = sub i64 %chunks, 1
  %chunk_first = select i1 %by_pairs, i64 %pair_chunk, i64 0
  %chunk_last = select i1 %by_pairs, i64 %pair_last, i64 %chunks_less
  br i1 %some, label %chunk, label %leave

chunk:
  %turn = phi i64 [%chunk_first, %entry], [%turn_next, %next_chunk]
  %before = mul i64 %turn, %count
  %shift = select i1 %by_pairs, i64 %before, i64 0
  %own_first = sub i64 %first, %shift
  %own_end = sub i64 %end, %shift
  %panel_first = call i64 @llvm.smax.i64(i64 %own_first, i64 0)
  %panel_end = call i64 @llvm.smin.i64(i64 %own_end, i64 %count)
  %at = mul i64 %turn, %chunk_rows
  %rest = sub i64 %rows, %at
  %high_rows = call i64 @llvm.smin.i64(i64 %rest, i64 %chunk_rows)
  %xo = mul i64 %at, %inputs
  %xc = getelementptr float, ptr %x, i64 %xo
  %oo = mul i64 %at, %outputs
  %oc = getelementptr float, ptr %out, i64 %oo
  %tiles_up = add i64 %high_rows, MOST_LESS
  %tiles = sdiv i64 %tiles_up, MOST
  br label %panel

panel:
  %j = phi i64 [%panel_first, %chunk], [%j_next, %next_panel]
  %column = mul i64 %j, WIDTH
  %columns_left = sub i64 %outputs, %column
  %panels_left = sub i64 %panel_end, %j
  %size = mul i64 %inputs, WIDTH
  %wo = mul i64 %j, %size
  %wp = getelementptr float, ptr %panels, i64 %wo
LOOP
activate:
  switch i64 %activation, label %next_panel [ACTIVATIONS]
ACTIVATE

next_panel:
  %j_next = add i64 %j, %taken
  %no_panel = icmp eq i64 %j_next, %panel_end
  br i1 %no_panel, label %next_chunk, label %panel

next_chunk:
  %turn_next = add i64 %turn, 1
  %no_chunk = icmp sgt i64 %turn_next, %chunk_last
  br i1 %no_chunk, label %leave, label %chunk

leave:
  ret void
}
"""
