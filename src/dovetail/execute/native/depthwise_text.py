"""LLVM's text of convolutions of each channel by itself, over images with channels last.

    slots: as `convolution_text`, over an image without padding around; `panels` are taps, of (height * width, channels)

Padding is less than the weight's size: each result reads some pixel. Where a result reads fewer than all taps, those
that lie outside are left out, which is what zeros around the image would add.

Where pixels side by side read columns side by side, a column is read once for all of them, for weights of the usual
sizes: their columns are unrolled.
"""

from __future__ import annotations

from itertools import product

from dovetail.execute.native.convolution_text import HEAD, NEXT_ROW, RESULT_ROW, activated
from dovetail.execute.native.tile_lines import splat
from dovetail.execute.native.tile_text import ATTRIBUTES, Tile, activations_text, clamped, declarations, limits

_PIXELS = 8  # of a row of results that share a tap
_COLUMNS = (3, 5)  # of weights of which columns of the image are shared by pixels
_SHARED = 100  # times the columns is added to the number of pixels

# The same without padding around the image: from which line on taps are inside, and how many lines.
_ROW_INSIDE = f"""{RESULT_ROW}
  %top = sub i64 %y, %above
  %hidden = sub i64 0, %top
  %tap_first = call i64 @llvm.smax.i64(i64 %hidden, i64 0)
  %below = sub i64 %high, %top
  %tap_end = call i64 @llvm.smin.i64(i64 %below, i64 %tall)
  %tap_lines = sub i64 %tap_end, %tap_first
  %y_first = add i64 %top, %tap_first
  %y_all = add i64 %y_first, %y_image
  %x_offset = mul i64 %y_all, %line_size
  %x_row = getelementptr float, ptr %x, i64 %x_offset
  %taps_line = mul i64 %broad, %inputs
  %taps_offset = mul i64 %tap_first, %taps_line
  %taps_row = getelementptr float, ptr %panels, i64 %taps_offset
"""
# Pixels side by side that read all taps of a line; else one, and those of its taps that lie inside.
_PIXELS_INSIDE = f"""
  %column_scaled = mul i64 %i, %across
  %column = sub i64 %column_scaled, %before
  %outside = sub i64 0, %column
  %l_first = call i64 @llvm.smax.i64(i64 %outside, i64 0)
  %right = sub i64 %wide, %column
  %l_end = call i64 @llvm.smin.i64(i64 %right, i64 %broad)
  %l_count = sub i64 %l_end, %l_first
  %is_whole = icmp eq i64 %l_count, %broad
  %whole_left = sub i64 %whole_end, %i
  %left = select i1 %is_whole, i64 %whole_left, i64 1
  %size_of = call i64 @llvm.smin.i64(i64 %left, i64 {_PIXELS})
  %is_shared = and i1 %is_whole, %shares
  %more = select i1 %is_shared, i64 %shared, i64 0
  %case = add i64 %size_of, %more
  %column_first = add i64 %column, %l_first
  %xi = mul i64 %column_first, %inputs
  %xq = getelementptr float, ptr %x_row, i64 %xi
  %wi = mul i64 %l_first, %inputs
  %wq = getelementptr float, ptr %taps_row, i64 %wi
  %oi = mul i64 %i, %outputs
  %oq = getelementptr float, ptr %out_row, i64 %oi
"""


def depthwise_text(tile: Tile) -> str:
    sizes = range(1, _PIXELS + 1)
    calls = {count: _pixel_call(f"pixels{count}") for count in sizes}
    functions = "\n".join(_pixels_text(tile, count) for count in sizes)
    for columns, count in product(_COLUMNS, sizes):
        calls[columns * _SHARED + count] = _pixel_call(f"shared{columns}_{count}")
        functions += _pixels_text(tile, count, columns)
    cases = " ".join(f"i64 {case}, label %of{case}" for case in calls)
    body = "\n".join(f"of{case}:\n{call}  br label %next_tile" for case, call in calls.items())
    usual = "\n".join(f"  %is{columns} = icmp eq i64 %broad, {columns}" for columns in _COLUMNS)
    loops = f"""
declare i64 @llvm.smax.i64(i64, i64)

define void @NAME(ptr %row, i64 %from, i64 %to) {{
entry:
{HEAD}
  %step = mul i64 %across, %inputs
  %reach = add i64 %wide, %before
  %reach_less = sub i64 %reach, %broad
  %whole_last = sdiv i64 %reach_less, %across
  %whole_next = add i64 %whole_last, 1
  %whole_end = call i64 @llvm.smin.i64(i64 %whole_next, i64 %columns)
{usual}
  %is_usual = or i1 %is{_COLUMNS[0]}, %is{_COLUMNS[1]}
  %is_beside = icmp eq i64 %across, 1
  %shares = and i1 %is_usual, %is_beside
  %shared = mul i64 %broad, {_SHARED}
  br i1 %some, label %each_row, label %leave

each_row:
  %r = phi i64 [%first, %entry], [%r_next, %next_row]
{_ROW_INSIDE}
  br label %tile

tile:
  %i = phi i64 [0, %each_row], [%i_next, %next_tile]
{_PIXELS_INSIDE}
  switch i64 %case, label %next_tile [{cases}]
{body}
next_tile:
  %i_next = add i64 %i, %size_of
  %no_tile = icmp eq i64 %i_next, %columns
  br i1 %no_tile, label %activate, label %tile

activate:
{activated("%columns", "%outputs", "next_row", "%out_row")}
{NEXT_ROW}"""
    return declarations(tile) + activations_text(tile, "NAME") + functions + loops


def _pixel_call(function: str) -> str:
    arguments = (
        "ptr %xq, i64 %step, i64 %line_size, i64 %inputs, ptr %wq, i64 %taps_line, ptr %bias, i1 %has_bias, ptr %oq,"
        " i64 %tap_lines, i64 %l_count, float %least, float %most"
    )
    return f"  call void @NAME_{function}({arguments})\n"


def _stored(lanes: int, p: int) -> str:
    """A pixel's vector of results within the clamps, written. p: which pixel."""
    v, mask = f"<{lanes} x float>", f"<{lanes} x i1>"
    within = "\n".join(clamped(f"%u{p}", p, lanes))
    return f"""{within}
  %oo{p} = mul i64 %channels, {p}
  %oc{p} = add i64 %oo{p}, %c
  %o{p} = getelementptr float, ptr %out, i64 %oc{p}
  call void @llvm.masked.store.v{lanes}f32.p0({v} %r{p}, ptr %o{p}, i32 4, {mask} %mask)"""


def _pixels_text(tile: Tile, count: int, columns: int = 0) -> str:
    """Some pixels of a row of results, vector by vector of channels. columns: of the weight, where pixels share those
    of the image; 0: of any weight.
    """
    lanes, pixels = tile.lanes, range(count)
    v, mask = f"<{lanes} x float>", f"<{lanes} x i1>"
    numbers = ", ".join(f"i64 {n}" for n in range(lanes))
    bounds, lefts, biased = map(
        "\n".join,
        (limits(lanes), splat("%lefts", "i64", "%left", lanes), splat("%some", "i1", "%has_bias", lanes)),
    )
    sums = "\n".join(f"  %s{p} = phi {v} [%begin, %vector], [%u{p}, %next_line]" for p in pixels)
    name, taps = (
        (f"shared{columns}_{count}", _shared(lanes, count, columns))
        if columns
        else (f"pixels{count}", _taps(lanes, count))
    )
    stores = "\n".join(_stored(lanes, p) for p in pixels)
    return f"""
define internal void @NAME_{name}(ptr %x, i64 %step, i64 %line_size, i64 %channels, ptr %taps, i64 %taps_line,
    ptr %bias, i1 %has_bias, ptr %out, i64 %tall, i64 %broad, float %least, float %most) noinline {ATTRIBUTES} {{
entry:
{bounds}
  br label %vector
vector:
  %c = phi i64 [0, %entry], [%c_next, %done]
  %left = sub i64 %channels, %c
{lefts}
  %mask = icmp slt <{lanes} x i64> <{numbers}>, %lefts
  %bp = getelementptr float, ptr %bias, i64 %c
{biased}
  %both = and {mask} %mask, %some
  %begin = call {v} @llvm.masked.load.v{lanes}f32.p0(ptr %bp, i32 4, {mask} %both, {v} zeroinitializer)
  %x_c = getelementptr float, ptr %x, i64 %c
  %taps_c = getelementptr float, ptr %taps, i64 %c
  br label %tap_line
tap_line:
  %k = phi i64 [0, %vector], [%k_next, %next_line]
{sums}
  %xl = mul i64 %k, %line_size
  %x_line = getelementptr float, ptr %x_c, i64 %xl
  %wl = mul i64 %k, %taps_line
  %w_line = getelementptr float, ptr %taps_c, i64 %wl
{taps}
next_line:
  %k_next = add i64 %k, 1
  %taps_done = icmp eq i64 %k_next, %tall
  br i1 %taps_done, label %done, label %tap_line
done:
{stores}
  %c_next = add i64 %c, {lanes}
  %more = icmp slt i64 %c_next, %channels
  br i1 %more, label %vector, label %leave
leave:
  ret void
}}
"""


def _taps(lanes: int, count: int) -> str:
    """A line of taps, one after the other, each for all pixels. Given: %s0 and so on, sums, and the blocks before and
    after, %tap_line and %next_line; %u0 and so on are the sums then.
    """
    v, mask, pixels = f"<{lanes} x float>", f"<{lanes} x i1>", range(count)
    inner = "\n".join(f"  %t{p} = phi {v} [%s{p}, %tap_line], [%u{p}, %tap]" for p in pixels)
    work = "\n".join(
        f"""  %xo{p} = mul i64 %step, {p}
  %xs{p} = getelementptr float, ptr %x_tap, i64 %xo{p}
  %v{p} = call {v} @llvm.masked.load.v{lanes}f32.p0(ptr %xs{p}, i32 4, {mask} %mask, {v} zeroinitializer)
  %u{p} = call {v} @llvm.fma.v{lanes}f32({v} %v{p}, {v} %w, {v} %t{p})"""
        for p in pixels
    )
    return f"""  br label %tap
tap:
  %l = phi i64 [0, %tap_line], [%l_next, %tap]
{inner}
  %offset = mul i64 %l, %channels
  %x_tap = getelementptr float, ptr %x_line, i64 %offset
  %w_tap = getelementptr float, ptr %w_line, i64 %offset
  %w = call {v} @llvm.masked.load.v{lanes}f32.p0(ptr %w_tap, i32 4, {mask} %mask, {v} zeroinitializer)
{work}
  %l_next = add i64 %l, 1
  %line_done = icmp eq i64 %l_next, %broad
  br i1 %line_done, label %next_line, label %tap
"""


def _shared(lanes: int, count: int, columns: int) -> str:
    """The same for a weight of so many columns: column by column of the image, each for all pixels that read it."""
    v, mask, lines = f"<{lanes} x float>", f"<{lanes} x i1>", list[str]()

    def load(name: str, pointer: str) -> None:
        arguments = f"ptr {pointer}, i32 4, {mask} %mask, {v} zeroinitializer"
        lines.append(f"  {name} = call {v} @llvm.masked.load.v{lanes}f32.p0({arguments})")

    for line, name in (("%w_line", "w"), ("%x_line", "v")):
        start = line
        for column in range(columns if name == "w" else count + columns - 1):
            if column:
                lines.append(f"  %{name}p{column} = getelementptr float, ptr {start}, i64 %channels")
                start = f"%{name}p{column}"
            load(f"%{name}{column}", start)
            for pixel in range(max(0, column - columns + 1), min(count, column + 1)) if name == "v" else ():
                tap = column - pixel
                former = f"%u{pixel}_{tap - 1}" if tap else f"%s{pixel}"
                made = f"%u{pixel}" if tap == columns - 1 else f"%u{pixel}_{tap}"
                arguments = f"{v} %v{column}, {v} %w{tap}, {v} {former}"
                lines.append(f"  {made} = call {v} @llvm.fma.v{lanes}f32({arguments})")
    return "\n".join([*lines, "  br label %next_line", ""])
