"""LLVM's text of products by weights in panels: tiles of rows by a panel, kept in registers while they are summed.

    slots: items, pointers (result, x, panels, bias), rows, inputs, outputs, panels, whether there is a bias, the least
    and the largest number that a result may be (two `float`), the activation

Items are shares of the work: panels are divided in proportion. Sums are of blocks of 256 products (64 where there are
few rows), added one after the other, so that rounding grows as in BLAS. NaN stays NaN where results are clamped.

Source: Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication" (2008); Van Zee and van de Geijn,
"BLIS" (2015), for micro-panels.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from dovetail.execute.native.machine import function_of
from dovetail.execute.native.vector_activations import CODES, activation_text
from dovetail.ops.panels import WIDTH

HALF = 100
"""Added to the number of rows of a tile that is half as wide."""

_BLOCK = 256  # products of a sum that is added to others
_FEW, _SHORT = 4, 64  # of so many rows at most, blocks are shorter: BLAS rounds less there, too
_CHUNK = 96  # rows whose part of the input stays in the cache while all panels are read
_AHEAD = 64  # lines of a panel that are fetched before they are read
_NAME = "panels"


@dataclass(frozen=True, slots=True)
class Tile:
    """lanes: of a vector. rows: of a tile at most, so that sums, a line of a panel and a number fit in registers."""

    lanes: int
    rows: int

    @property
    def vectors(self) -> int:
        """Of a line of a panel."""
        return WIDTH // self.lanes


WIDE, NARROW = Tile(16, 12), Tile(8, 2)
"""For AVX-512, with 32 registers, and for AVX2, with 16."""


@cache
def panel_function(tile: Tile) -> int:
    """The address of the function of such rows, in tiles of a size."""
    found = function_of(panel_text(tile), _NAME, ())
    assert found is not None, "it calls nothing"
    return found


def panel_text(tile: Tile) -> str:
    """The module, for tiles of a size."""
    return declarations(tile) + tiles_text(tile, _NAME) + activations_text(tile, _NAME) + _all_tiles(tile)


def tiles_text(tile: Tile, name: str) -> str:
    """The functions of tiles of all numbers of rows, `name_tile1` and so on."""
    return "\n".join(
        _tile(tile, rows, name, range(vectors))
        for vectors in sorted({tile.vectors, tile.vectors // 2})
        for rows in range(1, tile.rows + 1)
    )


def pair_text(tile: Tile, name: str) -> str:
    """The function of one row by two whole panels at once, `name_pair`: sums of one panel wait for each other."""
    v, lanes, vectors = _vector(tile), tile.lanes, range(2 * tile.vectors)
    head = (
        f"define internal void @{name}_pair(ptr %x, ptr %panel, i64 %apart, ptr %start, ptr %out, i64 %block,"
        f" float %least, float %most) noinline {ATTRIBUTES} {{"
    )
    out = ["entry:", "%other = getelementptr float, ptr %panel, i64 %apart", "br label %sum", "sum:"]
    out += ["%n = phi i64 [0, %entry], [%n_next, %sum]"]
    lines = ("panel", "other")
    out += [f"%line_{each} = phi ptr [%{each}, %entry], [%next_{each}, %sum]" for each in lines]
    out += [f"%c{j} = phi {v} [zeroinitializer, %entry], [%d{j}, %sum]" for j in vectors]
    out += ["%xp = getelementptr float, ptr %x, i64 %n", "%s = load float, ptr %xp, align 4"]
    out += splat("%v", "float", "%s", lanes)
    for j in vectors:
        line, at = lines[j // tile.vectors], j % tile.vectors * lanes
        out.append(f"%wp{j} = getelementptr float, ptr %line_{line}, i64 {at}")
        out.append(f"%w{j} = load {v}, ptr %wp{j}, align 4")
        out.append(f"%d{j} = call {v} @llvm.fma.v{lanes}f32({v} %v, {v} %w{j}, {v} %c{j})")
    for line in lines:
        out.append(f"%next_{line} = getelementptr float, ptr %line_{line}, i64 {WIDTH}")
    out += [
        "%n_next = add i64 %n, 1",
        "%is_last = icmp eq i64 %n_next, %block",
        "br i1 %is_last, label %done, label %sum",
    ]
    out += ["done:", *limits(lanes)]
    for j in vectors:
        out.append(f"%st{j} = getelementptr float, ptr %start, i64 {j * lanes}")
        out.append(f"%b{j} = load {v}, ptr %st{j}, align 4")
        out += [f"%t{j} = fadd {v} %b{j}, %d{j}", *clamped(f"%t{j}", j, lanes)]
        out.append(f"%o{j} = getelementptr float, ptr %out, i64 {j * lanes}")
        out.append(f"store {v} %r{j}, ptr %o{j}, align 4")
    return "\n".join([head, *out, "ret void", "}\n"])


def tile_calls(tile: Tile, name: str, arguments: str) -> tuple[str, str]:
    """The cases of a switch and the calls of tiles: for whole panels, and for those of which half is filled, which add
    `HALF` to the number of rows.
    """
    sizes = range(1, tile.rows + 1)
    halves = {0: tile.vectors, HALF: tile.vectors // 2}
    cases = " ".join(f"i64 {rows + more}, label %of{rows + more}" for more in halves for rows in sizes)
    calls = "\n".join(
        f"of{rows + more}:\n  call void @{name}_tile{rows}_{vectors}({arguments})\n  br label %next_tile"
        for more, vectors in halves.items()
        for rows in sizes
    )
    return cases, calls


def activations_text(tile: Tile, name: str) -> str:
    """The functions of activations, `name_gelu` and so on."""
    return "".join(activation_text(f"{name}_{each}", each, tile.lanes, ATTRIBUTES) for each in CODES)


def declarations(tile: Tile) -> str:
    """What these functions call."""
    return _DECLARED.format(v=_vector(tile), m=f"<{tile.lanes} x i1>", n=tile.lanes)


ATTRIBUTES = '"prefer-vector-width"="512" "min-legal-vector-width"="512"'  # or LLVM halves vectors on some processors
_DECLARED = """
declare {v} @llvm.fma.v{n}f32({v}, {v}, {v})
declare {v} @llvm.masked.load.v{n}f32.p0(ptr, i32, {m}, {v})
declare void @llvm.masked.store.v{n}f32.p0({v}, ptr, i32, {m})
declare {v} @llvm.roundeven.v{n}f32({v})
declare void @llvm.prefetch.p0(ptr, i32, i32, i32)
declare i64 @llvm.smin.i64(i64, i64)
"""


def splat(name: str, kind: str, number: str, lanes: int) -> list[str]:
    """A vector of one number, so many times, as `name`. kind: of the number."""
    vector = f"<{lanes} x {kind}>"
    return [
        f"{name}_one = insertelement {vector} poison, {kind} {number}, i64 0",
        f"{name} = shufflevector {vector} {name}_one, {vector} poison, <{lanes} x i32> zeroinitializer",
    ]


def limits(lanes: int) -> list[str]:
    """Vectors of the least and of the largest result, `%low` and `%high`."""
    return [*splat("%low", "float", "%least", lanes), *splat("%high", "float", "%most", lanes)]


def clamped(number: str, at: object, lanes: int) -> list[str]:
    """A vector within these, as `%r` and where it is; NaN stays NaN."""
    v, mask = f"<{lanes} x float>", f"<{lanes} x i1>"
    return [
        f"%under{at} = fcmp olt {v} {number}, %low",
        f"%raised{at} = select {mask} %under{at}, {v} %low, {v} {number}",
        f"%over{at} = fcmp ogt {v} %raised{at}, %high",
        f"%r{at} = select {mask} %over{at}, {v} %high, {v} %raised{at}",
    ]


def mask_of_columns(vector: int, lanes: int) -> list[str]:
    """Which of a panel's columns there are in one of its vectors, as `%mask` and its number."""
    numbers = ", ".join(f"i64 {n}" for n in range(lanes))
    return [
        f"%left{vector} = sub i64 %columns, {vector * lanes}",
        *splat(f"%lefts{vector}", "i64", f"%left{vector}", lanes),
        f"%mask{vector} = icmp slt <{lanes} x i64> <{numbers}>, %lefts{vector}",
    ]


def _vector(tile: Tile) -> str:
    return f"<{tile.lanes} x float>"


def _tile(tile: Tile, rows: int, name: str, vectors: range) -> str:
    """A function: some rows by a block of a panel, added to the bias or to what is in the result."""
    v, lanes = _vector(tile), tile.lanes
    head = (
        f"define internal void @{name}_tile{rows}_{len(vectors)}(ptr %x, i64 %down, ptr %panel, ptr %start,"
        f" i64 %start_down, ptr %out, i64 %out_down, i64 %block, i64 %columns,"
        f" float %least, float %most) noinline {ATTRIBUTES} {{"
    )
    out = ["entry:"]
    out += [f"%x{i} = getelementptr float, ptr %x, i64 %xo{i}" for i in range(rows)]
    out[1:1] = [f"%xo{i} = mul i64 %down, {i}" for i in range(rows)]
    out += ["br label %sum", "sum:"]
    out += ["%n = phi i64 [0, %entry], [%n_next, %sum]", "%line = phi ptr [%panel, %entry], [%line_next, %sum]"]
    places = [(i, j) for i in range(rows) for j in vectors]
    out += [f"%c{i}_{j} = phi {v} [zeroinitializer, %entry], [%d{i}_{j}, %sum]" for i, j in places]
    for j in vectors:
        out.append(f"%wp{j} = getelementptr float, ptr %line, i64 {j * lanes}")
        out.append(f"%w{j} = load {v}, ptr %wp{j}, align 4")
    for j in range(2):
        out.append(f"%ahead{j} = getelementptr float, ptr %line, i64 {_AHEAD * WIDTH + j * 16}")
        out.append(f"call void @llvm.prefetch.p0(ptr %ahead{j}, i32 0, i32 3, i32 1)")
    for i in range(rows):
        out.append(f"%xp{i} = getelementptr float, ptr %x{i}, i64 %n")
        out.append(f"%s{i} = load float, ptr %xp{i}, align 4")
        out += splat(f"%v{i}", "float", f"%s{i}", lanes)
        for j in vectors:
            out.append(f"%d{i}_{j} = call {v} @llvm.fma.v{lanes}f32({v} %v{i}, {v} %w{j}, {v} %c{i}_{j})")
    out += [f"%line_next = getelementptr float, ptr %line, i64 {WIDTH}", "%n_next = add i64 %n, 1"]
    out += ["%is_last = icmp eq i64 %n_next, %block", "br i1 %is_last, label %done, label %sum", "done:"]
    return "\n".join([head, *out, *stored(tile, rows, vectors), "ret void", "}"])


def stored(tile: Tile, rows: int, vectors: range, *, adds: bool = False) -> list[str]:
    """Sums are added to what they start from, clamped, and written, as many columns as there are. adds: whether there
    may be an addend, which is laid out as the result is.
    """
    v, lanes, out = _vector(tile), tile.lanes, list[str]()
    mask = f"<{lanes} x i1>"
    nothing = f"<{', '.join(['float -0.0'] * lanes)}>"  # which changes no sum, not even the sign of a zero
    out += limits(lanes)
    for j in vectors:
        out += mask_of_columns(j, lanes)
        if adds:
            out += [*splat(f"%all{j}", "i1", "%added", lanes), f"%adds{j} = and {mask} %mask{j}, %all{j}"]
    for i in range(rows):
        out.append(f"%oo{i} = mul i64 %out_down, {i}")
        out.append(f"%so{i} = mul i64 %start_down, {i}")
        for j in vectors:
            at = f"{i}_{j}"
            out.append(f"%op{at} = getelementptr float, ptr %out, i64 %oo{i}")
            out.append(f"%o{at} = getelementptr float, ptr %op{at}, i64 {j * lanes}")
            out.append(f"%sp{at} = getelementptr float, ptr %start, i64 %so{i}")
            out.append(f"%st{at} = getelementptr float, ptr %sp{at}, i64 {j * lanes}")
            arguments = f"ptr %st{at}, i32 4, {mask} %mask{j}, {v} zeroinitializer"
            out.append(f"%b{at} = call {v} @llvm.masked.load.v{lanes}f32.p0({arguments})")
            out.append(f"%t{at} = fadd {v} %b{at}, %d{at}")
            if adds:
                out.append(f"%ap{at} = getelementptr float, ptr %addend, i64 %oo{i}")
                out.append(f"%aq{at} = getelementptr float, ptr %ap{at}, i64 {j * lanes}")
                arguments = f"ptr %aq{at}, i32 4, {mask} %adds{j}, {v} {nothing}"
                out.append(f"%a{at} = call {v} @llvm.masked.load.v{lanes}f32.p0({arguments})")
                out.append(f"%e{at} = fadd {v} %t{at}, %a{at}")
            out += clamped(f"%{'e' if adds else 't'}{at}", at, lanes)
            out.append(f"call void @llvm.masked.store.v{lanes}f32.p0({v} %r{at}, ptr %o{at}, i32 4, {mask} %mask{j})")
    return out


def _all_tiles(tile: Tile) -> str:
    """The function of a row: chunks of rows, panels, blocks of products, tiles, in this order."""
    arguments = (
        "ptr %xq, i64 %inputs, ptr %wq, ptr %start, i64 %start_down, ptr %oq, i64 %outputs, i64 %block, i64 %columns,"
        " float %low, float %high"
    )
    cases, calls = tile_calls(tile, _NAME, arguments)
    chosen = " ".join(f"i64 {code}, label %{name}" for name, code in CODES.items())
    applied = "\n".join(
        f"{name}:\n  call void @{_NAME}_{name}(ptr %op, i64 %high_rows, i64 %outputs, i64 %columns)\n"
        "  br label %next_panel"
        for name in CODES
    )
    text = _LOOPS
    for name, lines in (("ACTIVATIONS", chosen), ("ACTIVATE", applied), ("CASES", cases), ("CALLS", calls)):
        text = text.replace(name, lines)
    numbers = {"WIDTH": WIDTH, "BLOCK": _BLOCK, "CHUNK": _CHUNK, "FEW": _FEW, "SHORT": _SHORT}
    numbers |= {"MIDDLE": WIDTH // 2, "ADDED": HALF, "MOST_LESS": tile.rows - 1, "MOST": tile.rows}
    for name, number in numbers.items():
        text = text.replace(name, str(number))
    return text.replace("NAME", _NAME)


_LOOPS = """
@NAME_zeros = internal constant [WIDTH x float] zeroinitializer, align 64

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
  %f0 = mul i64 %from, %count
  %f1 = add i64 %f0, %items_less
  %first = sdiv i64 %f1, %items
  %t0 = mul i64 %to, %count
  %t1 = add i64 %t0, %items_less
  %end = sdiv i64 %t1, %items
  %some_panels = icmp slt i64 %first, %end
  %some_rows = icmp sgt i64 %rows, 0
  %some = and i1 %some_panels, %some_rows
  %is_few = icmp sle i64 %rows, FEW
  %most_sums = select i1 %is_few, i64 SHORT, i64 BLOCK
  br i1 %some, label %chunk, label %leave

chunk:
  %at = phi i64 [0, %entry], [%at_next, %next_chunk]
  %rest = sub i64 %rows, %at
  %high_rows = call i64 @llvm.smin.i64(i64 %rest, i64 CHUNK)
  %xo = mul i64 %at, %inputs
  %xc = getelementptr float, ptr %x, i64 %xo
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
  %is_half = icmp sle i64 %columns, MIDDLE
  %more = select i1 %is_half, i64 ADDED, i64 0
  %size = mul i64 %inputs, WIDTH
  %wo = mul i64 %j, %size
  %wp = getelementptr float, ptr %panels, i64 %wo
  %bp = getelementptr float, ptr %bias, i64 %column
  %begin = select i1 %has_bias, ptr %bp, ptr @NAME_zeros
  %op = getelementptr float, ptr %oc, i64 %column
  br label %block_of_sums

block_of_sums:
  %k = phi i64 [0, %panel], [%k_next, %next_block]
  %k_left = sub i64 %inputs, %k
  %block = call i64 @llvm.smin.i64(i64 %k_left, i64 %most_sums)
  %k_next = add i64 %k, %most_sums
  %is_first = icmp eq i64 %k, 0
  %is_last = icmp sge i64 %k_next, %inputs
  %low = select i1 %is_last, float %least, float 0xFFF0000000000000
  %high = select i1 %is_last, float %most, float 0x7FF0000000000000
  %ko = mul i64 %k, WIDTH
  %wq = getelementptr float, ptr %wp, i64 %ko
  %start_down = select i1 %is_first, i64 0, i64 %outputs
  br label %tile

tile:
  %i = phi i64 [0, %block_of_sums], [%i_next, %next_tile]
  %todo = phi i64 [%tiles, %block_of_sums], [%todo_next, %next_tile]
  %rows_left = sub i64 %high_rows, %i
  %r0 = add i64 %rows_left, %todo
  %r1 = sub i64 %r0, 1
  %size_of = sdiv i64 %r1, %todo
  %xi0 = mul i64 %i, %inputs
  %xi = add i64 %xi0, %k
  %xq = getelementptr float, ptr %xc, i64 %xi
  %oi = mul i64 %i, %outputs
  %oq = getelementptr float, ptr %op, i64 %oi
  %start = select i1 %is_first, ptr %begin, ptr %oq
  %which = add i64 %size_of, %more
  switch i64 %which, label %next_tile [CASES]
CALLS
next_tile:
  %i_next = add i64 %i, %size_of
  %todo_next = sub i64 %todo, 1
  %no_tile = icmp eq i64 %todo_next, 0
  br i1 %no_tile, label %next_block, label %tile

next_block:
  br i1 %is_last, label %activate, label %block_of_sums

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
}
"""
