"""LLVM's text of products of 8-bit integers by weights in panels: sums of 32 bits in registers, exact.

    slots: items, pointers (result, levels, panels, ranges, scales, sums, bias), rows, groups of four inputs, outputs,
    panels, whether there is a bias, the least and the largest result (two `float`), the activation

Items are shares of the work: panels are divided in proportion. Tiles are those of `panel_text`, as there are as many
registers. A tile's sums stay in them over all inputs; then a result is `step * (scales * sum) + (least * sums + bias)`,
each product rounded once, by fused multiply-adds.

Source: as `panel_text`; Intel's architecture manual, VPDPBUSD: four products of an unsigned and a signed number.
"""

from __future__ import annotations

from functools import cache

from dovetail.execute.native.machine import function_of
from dovetail.execute.native.tile_lines import splat
from dovetail.execute.native.tile_text import (
    ATTRIBUTES,
    Tile,
    activations_text,
    clamped,
    declarations,
    limits,
    mask_of_columns,
)
from dovetail.execute.native.vector_activations import CODES
from dovetail.ops.panels import WIDTH
from dovetail.ops.quantized import GROUP

_CHUNK = 96  # rows whose levels stay in the cache while all panels are read
_AHEAD = 32  # lines of a panel that are fetched before they are read
_NAME = "int8_panels"


@cache
def int8_function(tile: Tile) -> int:
    """The address of the function of such rows, in tiles of a size."""
    found = function_of(int8_text(tile), _NAME, ())
    assert found is not None, "it calls nothing"
    return found


def int8_text(tile: Tile) -> str:
    """The module, for tiles of a size."""
    whole, bits = f"<{tile.lanes} x i32>", 32 * tile.lanes
    declared = f"declare {whole} @llvm.x86.avx512.vpdpbusd.{bits}({whole}, {whole}, {whole})\n"
    tiles = "\n".join(_tile(tile, rows) for rows in range(1, tile.rows + 1))
    return declarations(tile) + declared + tiles + activations_text(tile, _NAME) + _all_tiles(tile)


def _tile(tile: Tile, rows: int) -> str:
    """A function: some rows by a panel."""
    lanes, whole = tile.lanes, f"<{tile.lanes} x i32>"
    product = f"call {whole} @llvm.x86.avx512.vpdpbusd.{32 * lanes}"
    head = (
        f"define internal void @{_NAME}_tile{rows}(ptr %x, i64 %groups, ptr %panel, ptr %ranges, ptr %scales,"
        f" ptr %sums, ptr %bias, ptr %out, i64 %outputs, i64 %columns, i1 %has_bias, float %least, float %most)"
        f" noinline {ATTRIBUTES} {{"
    )
    out = ["entry:", *(f"%xo{i} = mul i64 %groups, {i}" for i in range(rows))]
    out += [f"%x{i} = getelementptr i32, ptr %x, i64 %xo{i}" for i in range(rows)]
    out += ["br label %sum", "sum:"]
    out += ["%n = phi i64 [0, %entry], [%n_next, %sum]", "%line = phi ptr [%panel, %entry], [%line_next, %sum]"]
    places = [(i, j) for i in range(rows) for j in range(tile.vectors)]
    out += [f"%c{i}_{j} = phi {whole} [zeroinitializer, %entry], [%d{i}_{j}, %sum]" for i, j in places]
    for j in range(tile.vectors):
        out.append(f"%wp{j} = getelementptr i32, ptr %line, i64 {j * lanes}")
        out.append(f"%w{j} = load {whole}, ptr %wp{j}, align 4")
    for j in range(2):
        out.append(f"%ahead{j} = getelementptr i32, ptr %line, i64 {_AHEAD * WIDTH + j * 16}")
        out.append(f"call void @llvm.prefetch.p0(ptr %ahead{j}, i32 0, i32 3, i32 1)")
    for i in range(rows):
        out.append(f"%xp{i} = getelementptr i32, ptr %x{i}, i64 %n")
        out.append(f"%s{i} = load i32, ptr %xp{i}, align 1")
        out += splat(f"%v{i}", "i32", f"%s{i}", lanes)
        for j in range(tile.vectors):
            out.append(f"%d{i}_{j} = {product}({whole} %c{i}_{j}, {whole} %v{i}, {whole} %w{j})")
    out += [f"%line_next = getelementptr i32, ptr %line, i64 {WIDTH}", "%n_next = add i64 %n, 1"]
    out += ["%is_last = icmp eq i64 %n_next, %groups", "br i1 %is_last, label %done, label %sum", "done:"]
    return "\n".join([head, *out, *_stored(tile, rows), "ret void", "}"])


def _stored(tile: Tile, rows: int) -> list[str]:
    """Sums are scaled, clamped, and written, as many columns as there are."""
    lanes, v, mask = tile.lanes, f"<{tile.lanes} x float>", f"<{tile.lanes} x i1>"
    out = list[str]()
    out += [*limits(lanes), *splat("%biased", "i1", "%has_bias", lanes)]
    for i in range(rows):
        out.append(f"%rp{i} = getelementptr float, ptr %ranges, i64 {2 * i}")
        out.append(f"%rq{i} = getelementptr float, ptr %ranges, i64 {2 * i + 1}")
        out += [f"%step_of{i} = load float, ptr %rp{i}, align 4", f"%least_of{i} = load float, ptr %rq{i}, align 4"]
        out += [*splat(f"%step{i}", "float", f"%step_of{i}", lanes)]
        out += [*splat(f"%first{i}", "float", f"%least_of{i}", lanes)]
    for j in range(tile.vectors):
        out += mask_of_columns(j, lanes)
        out.append(f"%both{j} = and {mask} %mask{j}, %biased")
        for name, chosen in (("scales", "mask"), ("sums", "mask"), ("bias", "both")):
            out.append(f"%p_{name}{j} = getelementptr float, ptr %{name}, i64 {j * lanes}")
            arguments = f"ptr %p_{name}{j}, i32 4, {mask} %{chosen}{j}, {v} zeroinitializer"
            out.append(f"%{name}{j} = call {v} @llvm.masked.load.v{lanes}f32.p0({arguments})")
        for i in range(rows):
            at = f"{i}_{j}"
            out.append(f"%f{at} = sitofp <{lanes} x i32> %d{at} to {v}")
            out.append(f"%g{at} = fmul {v} %f{at}, %scales{j}")
            fma = f"call {v} @llvm.fma.v{lanes}f32"
            out.append(f"%rest{at} = {fma}({v} %first{i}, {v} %sums{j}, {v} %bias{j})")
            out.append(f"%t{at} = {fma}({v} %g{at}, {v} %step{i}, {v} %rest{at})")
            out += clamped(f"%t{at}", at, lanes)
            out.append(f"%oo{at} = mul i64 %outputs, {i}")
            out.append(f"%oc{at} = add i64 %oo{at}, {j * lanes}")
            out.append(f"%o{at} = getelementptr float, ptr %out, i64 %oc{at}")
            out.append(f"call void @llvm.masked.store.v{lanes}f32.p0({v} %r{at}, ptr %o{at}, i32 4, {mask} %mask{j})")
    return out


def _all_tiles(tile: Tile) -> str:
    """The function of a row: chunks of rows, panels, tiles, in this order."""
    arguments = (
        "ptr %xq, i64 %groups, ptr %wp, ptr %rq, ptr %sp, ptr %np, ptr %bp, ptr %oq, i64 %outputs, i64 %columns,"
        " i1 %has_bias, float %least, float %most"
    )
    sizes = range(1, tile.rows + 1)
    cases = " ".join(f"i64 {rows}, label %of{rows}" for rows in sizes)
    calls = "\n".join(
        f"of{rows}:\n  call void @{_NAME}_tile{rows}({arguments})\n  br label %next_tile" for rows in sizes
    )
    chosen = " ".join(f"i64 {code}, label %{name}" for name, code in CODES.items())
    applied = "\n".join(
        f"{name}:\n  call void @{_NAME}_{name}(ptr %op, i64 %high_rows, i64 %outputs, i64 %columns)\n"
        "  br label %next_panel"
        for name in CODES
    )
    text = _LOOPS
    for name, lines in (("ACTIVATIONS", chosen), ("ACTIVATE", applied), ("CASES", cases), ("CALLS", calls)):
        text = text.replace(name, lines)
    numbers = {"LINE": WIDTH * GROUP, "WIDTH": WIDTH, "CHUNK": _CHUNK, "MOST_LESS": tile.rows - 1, "MOST": tile.rows}
    for name, number in numbers.items():
        text = text.replace(name, str(number))
    return text.replace("NAME", _NAME)


def _slots() -> str:
    """Values of slots, one after the other."""
    lines, at = list[str](), 1
    for kind, names in (
        ("ptr", "out x panels ranges scales sums bias"),
        ("i64", "rows groups outputs count biased"),
    ):
        for name in names.split():
            lines += [f"  %at_{name} = getelementptr i64, ptr %row, i64 {at}"]
            lines += [f"  %{name} = load {kind}, ptr %at_{name}"]
            at += 1
    lines += [f"  %at_least = getelementptr i64, ptr %row, i64 {at}", "  %least = load float, ptr %at_least"]
    lines += ["  %at_most = getelementptr float, ptr %at_least, i64 1", "  %most = load float, ptr %at_most"]
    lines += [f"  %at_activation = getelementptr i64, ptr %row, i64 {at + 1}"]
    return "\n".join([*lines, "  %activation = load i64, ptr %at_activation"])


_LOOPS = f"""
define void @NAME(ptr %row, i64 %from, i64 %to) {{
entry:
  %items = load i64, ptr %row
{_slots()}
  %has_bias = icmp ne i64 %biased, 0
  %items_less = sub i64 %items, 1
  %f0 = mul i64 %from, %count
  %f1 = add i64 %f0, %items_less
  %first = sdiv i64 %f1, %items
  %t0 = mul i64 %to, %count
  %t1 = add i64 %t0, %items_less
  %end = sdiv i64 %t1, %items
  %some_panels = icmp slt i64 %first, %end
  %some_rows = icmp sgt i64 %rows, 0
  %some = and i1 %some_panels, %some_rows
  %panel_size = mul i64 %groups, LINE
  br i1 %some, label %chunk, label %leave

chunk:
  %at = phi i64 [0, %entry], [%at_next, %next_chunk]
  %rest = sub i64 %rows, %at
  %high_rows = call i64 @llvm.smin.i64(i64 %rest, i64 CHUNK)
  %xo = mul i64 %at, %groups
  %xc = getelementptr i32, ptr %x, i64 %xo
  %ro = mul i64 %at, 2
  %rc = getelementptr float, ptr %ranges, i64 %ro
  %oo = mul i64 %at, %outputs
  %oc = getelementptr float, ptr %out, i64 %oo
  %tiles_up = add i64 %high_rows, MOST_LESS
  %tiles = sdiv i64 %tiles_up, MOST
  br label %panel

panel:
  %j = phi i64 [%first, %chunk], [%j_next, %next_panel]
  %column = mul i64 %j, WIDTH
  %columns_left = sub i64 %outputs, %column
  %columns = call i64 @llvm.smin.i64(i64 %columns_left, i64 WIDTH)
  %wo = mul i64 %j, %panel_size
  %wp = getelementptr i8, ptr %panels, i64 %wo
  %sp = getelementptr float, ptr %scales, i64 %column
  %np = getelementptr float, ptr %sums, i64 %column
  %bp = getelementptr float, ptr %bias, i64 %column
  %op = getelementptr float, ptr %oc, i64 %column
  br label %tile

tile:
  %i = phi i64 [0, %panel], [%i_next, %next_tile]
  %todo = phi i64 [%tiles, %panel], [%todo_next, %next_tile]
  %rows_left = sub i64 %high_rows, %i
  %r0 = add i64 %rows_left, %todo
  %r1 = sub i64 %r0, 1
  %size_of = sdiv i64 %r1, %todo
  %xi = mul i64 %i, %groups
  %xq = getelementptr i32, ptr %xc, i64 %xi
  %ri = mul i64 %i, 2
  %rq = getelementptr float, ptr %rc, i64 %ri
  %oi = mul i64 %i, %outputs
  %oq = getelementptr float, ptr %op, i64 %oi
  switch i64 %size_of, label %next_tile [CASES]
CALLS
next_tile:
  %i_next = add i64 %i, %size_of
  %todo_next = sub i64 %todo, 1
  %no_tile = icmp eq i64 %todo_next, 0
  br i1 %no_tile, label %activate, label %tile

activate:
  switch i64 %activation, label %next_panel [ACTIVATIONS]
ACTIVATE

next_panel:
  %j_next = add i64 %j, 1
  %no_panel = icmp eq i64 %j_next, %end
  br i1 %no_panel, label %next_chunk, label %panel

next_chunk:
  %at_next = add i64 %at, CHUNK
  %no_chunk = icmp sge i64 %at_next, %rows
  br i1 %no_chunk, label %leave, label %chunk

leave:
  ret void
}}
"""
