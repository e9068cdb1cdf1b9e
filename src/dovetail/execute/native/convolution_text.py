"""LLVM's text of convolutions of images with channels last, by panels of outputs.

    pad       slots: 1, pointers (padded, x), images, height, width, channels, rows above, columns before, height and
              width with padding
    planes    the same, of an image whose channels come first
    convolve  slots: items, pointers (result, padded, panels, bias), images, rows and columns of the result, outputs,
              panels, inputs, height and width of the padded image and of the weight, strides (two), padding (two),
              whether there is a bias, the least and the largest result (two `float`), the activation

Items are shares of the work: rows of all results are divided in proportion. A row of pixels by a panel is tiles of
`panel_text`, once for each line of the weight, whose pixels lie side by side.

Source: as `panel_text`; Zhang et al., "High Performance Zero-Memory Overhead Direct Convolutions" (2018).
"""

from __future__ import annotations

from dovetail.execute.native.llvm_function import Function
from dovetail.execute.native.panel_text import (
    HALF,
    Tile,
    activations_text,
    declarations,
    tile_calls,
    tiles_text,
)
from dovetail.execute.native.vector_activations import CODES
from dovetail.ops.panels import WIDTH


def _loaded(names: str, start: int = 1, kind: str = "i64") -> str:
    """Values of slots, one after the other."""
    lines = []
    for at, name in enumerate(names.split(), start):
        lines.append(f"  %at_{name} = getelementptr i64, ptr %row, i64 {at}")
        lines.append(f"  %{name} = load {kind}, ptr %at_{name}")
    return "\n".join(lines)


_SLOTS = "images rows columns outputs panels_count inputs high wide tall broad down across above before biased"
HEAD = f"""
  %items = load i64, ptr %row
{_loaded("out x panels bias", 1, "ptr")}
{_loaded(_SLOTS, 5)}
  %at_least = getelementptr i64, ptr %row, i64 20
  %least = load float, ptr %at_least
  %at_most = getelementptr float, ptr %at_least, i64 1
  %most = load float, ptr %at_most
{_loaded("activation", 21)}
  %has_bias = icmp ne i64 %biased, 0
  %all_rows = mul i64 %images, %rows
  %items_less = sub i64 %items, 1
  %f0 = mul i64 %from, %all_rows
  %f1 = add i64 %f0, %items_less
  %first = sdiv i64 %f1, %items
  %t0 = mul i64 %to, %all_rows
  %t1 = add i64 %t0, %items_less
  %end = sdiv i64 %t1, %items
  %some = icmp slt i64 %first, %end
"""
# The first pixel that a row of results reads, and the row itself.
RESULT_ROW = """
  %image = sdiv i64 %r, %rows
  %r_first = mul i64 %image, %rows
  %r_in = sub i64 %r, %r_first
  %y = mul i64 %r_in, %down
  %y_image = mul i64 %image, %high
  %line_size = mul i64 %wide, %inputs
  %out_size = mul i64 %columns, %outputs
  %out_offset = mul i64 %r, %out_size
  %out_row = getelementptr float, ptr %out, i64 %out_offset
"""
_ROW = f"""{RESULT_ROW}
  %y_all = add i64 %y, %y_image
  %x_offset = mul i64 %y_all, %line_size
  %x_row = getelementptr float, ptr %x, i64 %x_offset
"""


def activated(rows: str, columns: str, then: str, out: str) -> str:
    """Apply the activation to what is written, and go on."""
    cases = " ".join(f"i64 {code}, label %{name}" for name, code in CODES.items())
    calls = "\n".join(
        f"{name}:\n  call void @NAME_{name}(ptr {out}, i64 {rows}, i64 %outputs, i64 {columns})\n  br label %{then}"
        for name in CODES
    )
    return f"  switch i64 %activation, label %{then} [{cases}]\n{calls}"


NEXT_ROW = """next_row:
  %r_next = add i64 %r, 1
  %no_row = icmp eq i64 %r_next, %end
  br i1 %no_row, label %leave, label %each_row

leave:
  ret void
}
"""


def _tiles_of_line(cases: str, calls: str) -> str:
    """The tiles of a row of results, for one line of taps. cases, calls: by the size of a tile."""
    return f"""tile:
  %i = phi i64 [0, %tap_line], [%i_next, %next_tile]
  %todo = phi i64 [%tiles, %tap_line], [%todo_next, %next_tile]
  %pixels_left = sub i64 %columns, %i
  %r0 = add i64 %pixels_left, %todo
  %r1 = sub i64 %r0, 1
  %size_of = sdiv i64 %r1, %todo
  %xi = mul i64 %i, %step
  %xq = getelementptr float, ptr %x_line, i64 %xi
  %oi = mul i64 %i, %outputs
  %oq = getelementptr float, ptr %op, i64 %oi
  %start = select i1 %is_first, ptr %begin, ptr %oq
  %which = add i64 %size_of, %more
  switch i64 %which, label %next_tile [{cases}]
{calls}
next_tile:
  %i_next = add i64 %i, %size_of
  %todo_next = sub i64 %todo, 1
  %no_tile = icmp eq i64 %todo_next, 0
  br i1 %no_tile, label %next_line, label %tile
"""


def convolve_text(tile: Tile) -> str:
    arguments = (
        "ptr %xq, i64 %step, ptr %wq, ptr %start, i64 %start_down, ptr %oq, i64 %outputs, i64 %block, i64 %valid,"
        " float %low, float %high_number"
    )
    cases, calls = tile_calls(tile, "NAME", arguments)
    loops = f"""
@NAME_zeros = internal constant [{WIDTH} x float] zeroinitializer, align 64

define void @NAME(ptr %row, i64 %from, i64 %to) {{
entry:
{HEAD}
  %block = mul i64 %broad, %inputs
  %step = mul i64 %across, %inputs
  %panel_line = mul i64 %block, {WIDTH}
  %panel_size = mul i64 %panel_line, %tall
  %tiles_up = add i64 %columns, {tile.rows - 1}
  %tiles = sdiv i64 %tiles_up, {tile.rows}
  br i1 %some, label %each_row, label %leave

each_row:
  %r = phi i64 [%first, %entry], [%r_next, %next_row]
{_ROW}
  br label %panel

panel:
  %j = phi i64 [0, %each_row], [%j_next, %next_panel]
  %column = mul i64 %j, {WIDTH}
  %columns_left = sub i64 %outputs, %column
  %valid = call i64 @llvm.smin.i64(i64 %columns_left, i64 {WIDTH})
  %is_half = icmp sle i64 %valid, {WIDTH // 2}
  %more = select i1 %is_half, i64 {HALF}, i64 0
  %wo = mul i64 %j, %panel_size
  %wp = getelementptr float, ptr %panels, i64 %wo
  %bp = getelementptr float, ptr %bias, i64 %column
  %begin = select i1 %has_bias, ptr %bp, ptr @NAME_zeros
  %op = getelementptr float, ptr %out_row, i64 %column
  br label %tap_line

tap_line:
  %k = phi i64 [0, %panel], [%k_next, %next_line]
  %k_next = add i64 %k, 1
  %is_first = icmp eq i64 %k, 0
  %is_last = icmp eq i64 %k_next, %tall
  %low = select i1 %is_last, float %least, float 0xFFF0000000000000
  %high_number = select i1 %is_last, float %most, float 0x7FF0000000000000
  %wl = mul i64 %k, %panel_line
  %wq = getelementptr float, ptr %wp, i64 %wl
  %xl = mul i64 %k, %line_size
  %x_line = getelementptr float, ptr %x_row, i64 %xl
  %start_down = select i1 %is_first, i64 0, i64 %outputs
  br label %tile

{_tiles_of_line(cases, calls)}
next_line:
  br i1 %is_last, label %activate, label %tap_line

activate:
{activated("%columns", "%valid", "next_panel", "%op")}
next_panel:
  %j_next = add i64 %j, 1
  %no_panel = icmp eq i64 %j_next, %panels_count
  br i1 %no_panel, label %next_row, label %panel

{NEXT_ROW}"""
    return declarations(tile) + tiles_text(tile, "NAME") + activations_text(tile, "NAME") + loops


PAD = f"""
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

define void @NAME(ptr %row, i64 %from, i64 %to) {{
entry:
{_loaded("padded x", 1, "ptr")}
{_loaded("images height width channels above before high wide", 3)}
  %pixel = mul i64 %channels, 4
  %line = mul i64 %width, %pixel
  %padded_line = mul i64 %wide, %pixel
  %left = mul i64 %before, %pixel
  %ends = add i64 %left, %line
  %right = sub i64 %padded_line, %ends
  %end_above = add i64 %above, %height
  br label %image

image:
  %n = phi i64 [0, %entry], [%n_next, %next_image]
  %n_lines = mul i64 %n, %high
  %n_source = mul i64 %n, %height
  br label %each

each:
  %y = phi i64 [0, %image], [%y_next, %next]
  %y_to = add i64 %n_lines, %y
  %to_offset = mul i64 %y_to, %padded_line
  %to_line = getelementptr i8, ptr %padded, i64 %to_offset
  %is_below = icmp sge i64 %y, %above
  %is_above = icmp slt i64 %y, %end_above
  %is_inside = and i1 %is_below, %is_above
  br i1 %is_inside, label %inside, label %outside

inside:
  %y_in = sub i64 %y, %above
  %y_from = add i64 %n_source, %y_in
  %from_offset = mul i64 %y_from, %line
  %from_line = getelementptr i8, ptr %x, i64 %from_offset
  call void @llvm.memset.p0.i64(ptr %to_line, i8 0, i64 %left, i1 false)
  %to_middle = getelementptr i8, ptr %to_line, i64 %left
  call void @llvm.memcpy.p0.p0.i64(ptr %to_middle, ptr %from_line, i64 %line, i1 false)
  %to_right = getelementptr i8, ptr %to_line, i64 %ends
  call void @llvm.memset.p0.i64(ptr %to_right, i8 0, i64 %right, i1 false)
  br label %next

outside:
  call void @llvm.memset.p0.i64(ptr %to_line, i8 0, i64 %padded_line, i1 false)
  br label %next

next:
  %y_next = add i64 %y, 1
  %no_line = icmp eq i64 %y_next, %high
  br i1 %no_line, label %next_image, label %each

next_image:
  %n_next = add i64 %n, 1
  %no_image = icmp eq i64 %n_next, %images
  br i1 %no_image, label %leave, label %image

leave:
  ret void
}}
"""


def planes_text() -> str:
    """The function that copies an image of planes to one with channels last, with padding around."""
    out = Function("define void @NAME(ptr %row, i64 %from, i64 %to)")
    padded, x = (out.slot("%row", at, "ptr") for at in (1, 2))
    images, height, width, channels, above, before, high, wide = (out.slot("%row", at) for at in range(3, 11))

    def times(a: str, b: str) -> str:
        return out.set(f"mul i64 {a}, {b}")

    def plus(a: str, b: str) -> str:
        return out.set(f"add i64 {a}, {b}")

    line = times(wide, channels)
    size = times(times(times(images, high), line), "4")
    with out.when(out.set(f"icmp sgt i64 {plus(above, before)}, 0")):
        out.line(f"call void @llvm.memset.p0.i64(ptr {padded}, i8 0, i64 {size}, i1 false)")
    with out.loop("0", images) as n, out.loop("0", height) as y:
        row = times(plus(plus(times(n, high), above), y), line)
        start = out.element("float", padded, plus(row, times(before, channels)))
        with out.loop("0", channels) as c:
            plane = times(plus(times(plus(times(n, channels), c), height), y), width)
            given, made = out.element("float", x, plane), out.element("float", start, c)
            with out.loop("0", width) as at:
                number = out.load("float", out.element("float", given, at))
                out.line(f"store float {number}, ptr {out.element('float', made, times(at, channels))}, align 4")
    return "declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)\n" + out.finished()
