"""LLVM's text of rounding rows to 8-bit integers: ranges of rows, and levels, with the bits of `ops.quantized`.

    ranges   slots: items, pointers (ranges, x), rows, columns
    levels   slots: items, pointers (levels, x, ranges), rows, columns

Items are shares of the work: rows are divided in proportion. NaN in a row makes its range NaN, as torch's minimum does;
its levels are any then, and results of the row are NaN.
"""

from __future__ import annotations

from functools import cache

from dovetail.execute.native.machine import function_of
from dovetail.execute.native.tile_lines import splat
from dovetail.execute.native.tile_text import ATTRIBUTES

_LEVELS, _SMALLEST = "0x406FE00000000000", "0x39B4484C00000000"  # 255; 1e-30 as `float` rounds it


@cache
def rounding_function(kind: str, lanes: int) -> int:
    """The address of the function of such rows. kind: ranges or levels."""
    text = _ranges_text(lanes) if kind == "ranges" else _levels_text(lanes)
    found = function_of(text, f"row_{kind}", ())
    assert found is not None, "it calls nothing"
    return found


def _loops(name: str, lanes: int, pointers: str, start: str, part: str, end: str) -> str:
    """A function: `start` for each row, `part` for each vector of it, `end` behind these."""
    slots, at = list[str](), 1
    for kind, names in (("ptr", pointers), ("i64", "rows columns")):
        for each in names.split():
            slots += [f"  %at_{each} = getelementptr i64, ptr %row, i64 {at}"]
            slots += [f"  %{each} = load {kind}, ptr %at_{each}"]
            at += 1
    numbers = ", ".join(f"i64 {n}" for n in range(lanes))
    opened = "\n".join(slots)
    return f"""
define void @{name}(ptr %row, i64 %from, i64 %to) {ATTRIBUTES} {{
entry:
  %items = load i64, ptr %row
{opened}
  %items_less = sub i64 %items, 1
  %f0 = mul i64 %from, %rows
  %f1 = add i64 %f0, %items_less
  %first = sdiv i64 %f1, %items
  %t0 = mul i64 %to, %rows
  %t1 = add i64 %t0, %items_less
  %end = sdiv i64 %t1, %items
  %some = icmp slt i64 %first, %end
  br i1 %some, label %each, label %leave
each:
  %i = phi i64 [%first, %entry], [%i_next, %row_done]
  %offset = mul i64 %i, %columns
  %x_row = getelementptr float, ptr %x, i64 %offset
  %pair = mul i64 %i, 2
  %step_at = getelementptr float, ptr %ranges, i64 %pair
  %least_at = getelementptr float, ptr %step_at, i64 1
{start}
  br label %part
part:
  %j = phi i64 [0, %each], [%j_next, %part]
{part}
  %j_next = add i64 %j, {lanes}
  %more = icmp slt i64 %j_next, %columns
  br i1 %more, label %part, label %row_done
row_done:
{end}
  %i_next = add i64 %i, 1
  %no_row = icmp eq i64 %i_next, %end
  br i1 %no_row, label %leave, label %each
leave:
  ret void
}}
""".replace("MASK", _mask(lanes, numbers))


def _mask(lanes: int, numbers: str) -> str:
    lefts = "\n".join(splat("%lefts", "i64", "%left", lanes))
    return f"""  %left = sub i64 %columns, %j
{lefts}
  %mask = icmp slt <{lanes} x i64> <{numbers}>, %lefts
  %x_at = getelementptr float, ptr %x_row, i64 %j"""


def _filled(name: str, number: str, lanes: int) -> str:
    return "\n".join(splat(f"%{name}", "float", number, lanes))


def _ranges_text(lanes: int) -> str:
    v, mask = f"<{lanes} x float>", f"<{lanes} x i1>"
    declared = f"""
declare {v} @llvm.masked.load.v{lanes}f32.p0(ptr, i32, {mask}, {v})
declare {v} @llvm.minimum.v{lanes}f32({v}, {v})
declare {v} @llvm.maximum.v{lanes}f32({v}, {v})
declare float @llvm.minimum.f32(float, float)
declare float @llvm.maximum.f32(float, float)
"""
    start = f"  %x_first = load float, ptr %x_row, align 4\n{_filled('begin', '%x_first', lanes)}"
    part = f"""  %lo = phi {v} [%begin, %each], [%lo_next, %part]
  %hi = phi {v} [%begin, %each], [%hi_next, %part]
MASK
  %given = call {v} @llvm.masked.load.v{lanes}f32.p0(ptr %x_at, i32 4, {mask} %mask, {v} %begin)
  %lo_next = call {v} @llvm.minimum.v{lanes}f32({v} %lo, {v} %given)
  %hi_next = call {v} @llvm.maximum.v{lanes}f32({v} %hi, {v} %given)"""
    end, names = list[str](), {"minimum": "%lo_next", "maximum": "%hi_next"}
    for kind, found in names.items():
        value, width = found, lanes
        while width > 1:
            width //= 2
            order = ", ".join(f"i32 {(n + width) % lanes}" for n in range(lanes))
            turned, made = f"%{kind}_turned{width}", f"%{kind}{width}"
            end.append(f"  {turned} = shufflevector {v} {value}, {v} poison, <{lanes} x i32> <{order}>")
            end.append(f"  {made} = call {v} @llvm.{kind}.v{lanes}f32({v} {value}, {v} {turned})")
            value = made
        end.append(f"  %{kind}_of = extractelement {v} {value}, i64 0")
    end.append(f"""  %spread = fsub float %maximum_of, %minimum_of
  %is_small = fcmp olt float %spread, {_SMALLEST}
  %wide = select i1 %is_small, float {_SMALLEST}, float %spread
  %step = fdiv float %wide, {_LEVELS}
  store float %step, ptr %step_at, align 4
  store float %minimum_of, ptr %least_at, align 4""")
    return declared + _loops("row_ranges", lanes, "ranges x", start, part, "\n".join(end))


def _levels_text(lanes: int) -> str:
    v, mask = f"<{lanes} x float>", f"<{lanes} x i1>"
    declared = f"""
declare {v} @llvm.masked.load.v{lanes}f32.p0(ptr, i32, {mask}, {v})
declare void @llvm.masked.store.v{lanes}i8.p0(<{lanes} x i8>, ptr, i32, {mask})
"""
    start = f"""  %levels_row = getelementptr i8, ptr %levels, i64 %offset
  %step = load float, ptr %step_at, align 4
  %least = load float, ptr %least_at, align 4
  %factor_of = fdiv float 1.0, %step
{_filled("factor", "%factor_of", lanes)}
{_filled("low", "%least", lanes)}"""
    part = f"""MASK
  %given = call {v} @llvm.masked.load.v{lanes}f32.p0(ptr %x_at, i32 4, {mask} %mask, {v} %low)
  %shifted = fsub {v} %given, %low
  %scaled = fmul {v} %shifted, %factor
  %level = fadd {v} %scaled, splat (float 0.5)
  %is_level = fcmp olt {v} %level, splat (float 256.0)
  %known = select {mask} %is_level, {v} %level, {v} zeroinitializer
  %whole = fptoui {v} %known to <{lanes} x i32>
  %few = trunc <{lanes} x i32> %whole to <{lanes} x i8>
  %few_at = getelementptr i8, ptr %levels_row, i64 %j
  call void @llvm.masked.store.v{lanes}i8.p0(<{lanes} x i8> %few, ptr %few_at, i32 1, {mask} %mask)"""
    return declared + _loops("row_levels", lanes, "levels x ranges", start, part, "")
