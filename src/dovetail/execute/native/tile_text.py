"""LLVM's text of tiles: rows by a panel, or one row by several panels, kept in registers while they are summed; and of
the loops over a panel's blocks of products and tiles of rows.

Kernels over panels (`panel_text`, `convolution_text`, `int8_text`, `recurrent_text`) put their loops around these.

Source: Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication" (2008); Van Zee and van de Geijn,
"BLIS" (2015), for micro-panels.
"""

from __future__ import annotations

from dataclasses import dataclass
from string import Template

from dovetail.execute.native.tile_lines import multiplied, splat
from dovetail.execute.native.vector_activations import CODES, DECLARED, SCALED, activation_text
from dovetail.ops.panels import WIDTH

HALF = 100
"""Added to the number of rows of a tile that is half as wide."""
_AHEAD = 64  # lines of a panel that are fetched before they are read
_GROUP = 1000  # is added to the number of panels in cases


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


def tiles_text(tile: Tile, name: str) -> str:
    """The functions of tiles of all numbers of rows, `name_tile1` and so on."""
    return "\n".join(
        _tile(tile, rows, name, range(vectors))
        for vectors in sorted({tile.vectors, tile.vectors // 2})
        for rows in range(1, tile.rows + 1)
    )


def group_sizes(tile: Tile) -> tuple[int, ...]:
    """How many whole panels one row is multiplied by at once. A panel by itself is one stream of memory, of which
    processors fetch too few lines ahead, and its sums wait for each other.
    """
    return (2, 8) if tile.lanes == WIDE.lanes else (2,)


def groups_text(tile: Tile, name: str) -> str:
    """The functions of one row by several panels, `name_group2` and so on."""
    return "\n".join(_group(tile, name, panels) for panels in group_sizes(tile))


def _group(tile: Tile, name: str, panels: int) -> str:
    v, lanes, vectors = _vector(tile), tile.lanes, range(panels * tile.vectors)
    head = (
        f"define internal void @{name}_group{panels}(ptr %x, ptr %panel, i64 %apart, ptr %start, ptr %out, i64 %block,"
        f" float %least, float %most) noinline {ATTRIBUTES} {{"
    )
    out = ["entry:"]
    for at in range(panels):
        out += [f"%far{at} = mul i64 %apart, {at}", f"%panel{at} = getelementptr float, ptr %panel, i64 %far{at}"]
    out += ["br label %sum", "sum:", "%n = phi i64 [0, %entry], [%n_next, %sum]"]
    out += [f"%c{j} = phi {v} [zeroinitializer, %entry], [%d{j}, %sum]" for j in vectors]
    out += ["%xp = getelementptr float, ptr %x, i64 %n", "%s = load float, ptr %xp, align 4"]
    out += [*splat("%v", "float", "%s", lanes), f"%offset = mul i64 %n, {WIDTH}"]
    out += [f"%line{at} = getelementptr float, ptr %panel{at}, i64 %offset" for at in range(panels)]
    for j in vectors:
        out.append(f"%wp{j} = getelementptr float, ptr %line{j // tile.vectors}, i64 {j % tile.vectors * lanes}")
        out.append(f"%w{j} = load {v}, ptr %wp{j}, align 4")
        out.append(f"%d{j} = call {v} @llvm.fma.v{lanes}f32({v} %v, {v} %w{j}, {v} %c{j})")
    out += ["%n_next = add i64 %n, 1", "%is_last = icmp eq i64 %n_next, %block"]
    out += ["br i1 %is_last, label %done, label %sum", "done:", *limits(lanes)]
    for j in vectors:
        out.append(f"%st{j} = getelementptr float, ptr %start, i64 {j * lanes}")
        out.append(f"%b{j} = load {v}, ptr %st{j}, align 4")
        out += [f"%t{j} = fadd {v} %b{j}, %d{j}", *clamped(f"%t{j}", j, lanes)]
        out.append(f"%o{j} = getelementptr float, ptr %out, i64 {j * lanes}")
        out.append(f"store {v} %r{j}, ptr %o{j}, align 4")
    return "\n".join([head, *out, "ret void", "}\n"])


def activations_text(tile: Tile, name: str) -> str:
    """The functions of activations, `name_gelu` and so on."""
    return "".join(activation_text(f"{name}_{each}", each, tile.lanes, ATTRIBUTES) for each in CODES)


def declarations(tile: Tile) -> str:
    """What these functions call."""
    scaled = DECLARED if tile.lanes == SCALED else ""
    return _DECLARED.format(v=_vector(tile), m=f"<{tile.lanes} x i1>", n=tile.lanes) + scaled


ATTRIBUTES = '"prefer-vector-width"="512" "min-legal-vector-width"="512"'  # or LLVM halves vectors on some processors
_DECLARED = """
declare {v} @llvm.fma.v{n}f32({v}, {v}, {v})
declare {v} @llvm.masked.load.v{n}f32.p0(ptr, i32, {m}, {v})
declare void @llvm.masked.store.v{n}f32.p0({v}, ptr, i32, {m})
declare {v} @llvm.roundeven.v{n}f32({v})
declare void @llvm.prefetch.p0(ptr, i32, i32, i32)
declare i64 @llvm.smin.i64(i64, i64)
"""


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
        f" float %least, float %most, ptr %fetch, i64 %fetch_step, i64 %fetch_apart) noinline {ATTRIBUTES} {{"
    )
    out = ["entry:"]
    out += [f"%x{i} = getelementptr float, ptr %x, i64 %xo{i}" for i in range(rows)]
    out[1:1] = [f"%xo{i} = mul i64 %down, {i}" for i in range(rows)]
    out += ["br label %sum", "sum:"]
    out += ["%n = phi i64 [0, %entry], [%n_next, %sum]", "%line = phi ptr [%panel, %entry], [%line_next, %sum]"]
    out.append("%fetched = phi ptr [%fetch, %entry], [%fetch_next, %sum]")
    places = [(i, j) for i in range(rows) for j in vectors]
    out += [f"%c{i}_{j} = phi {v} [zeroinitializer, %entry], [%d{i}_{j}, %sum]" for i, j in places]
    out.append("%fetch_next = getelementptr i8, ptr %fetched, i64 %fetch_step")
    for j in range(2):
        out.append(f"%far{j} = mul i64 %fetch_apart, {j}")
        out.append(f"%ahead{j} = getelementptr i8, ptr %fetched, i64 %far{j}")
        out.append(f"call void @llvm.prefetch.p0(ptr %ahead{j}, i32 0, i32 2, i32 1)")
    out += multiplied(rows, vectors, lanes)
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


@dataclass(frozen=True, slots=True)
class PanelLoop:
    """Registers, or numbers, of the function around.

    x, down: rows, and the elements from one to the next. out, out_down: the same of results. panels: how many there are
    from here on. sums: products of a sum that is added to others. least, most: what a result may be. after: the block
    that follows.
    """

    x: str
    down: str
    rows: str
    out: str
    out_down: str
    panels: str
    sums: str
    least: str
    most: str
    after: str


def panel_loop(tile: Tile, name: str, loop: PanelLoop) -> str:
    """The lines, for functions `name_tile..` and `name_group..`; also of what follows until the block after.

    Given: %panel, the block in which they begin; %wp, the panel; %size, its elements; %column and %columns_left, its
    first column and how many there are from there on; %tiles, of how many the rows are; %bias, %has_bias, %inputs.
    Leave: %op, the result; %taken, how many panels were read; %columns, how many columns.
    """
    tiles = (
        f"ptr %xq, i64 {loop.down}, ptr %wq, ptr %start, i64 %start_down, ptr %oq, i64 {loop.out_down}, i64 %block,"
        " i64 %columns, float %low, float %high, ptr %fetch, i64 %fetch_step, i64 %fetch_apart"
    )
    groups = "ptr %xq, ptr %wq, i64 %size, ptr %start, ptr %oq, i64 %block, float %low, float %high"
    both = _tile_calls(tile, name, tiles), _group_calls(tile, name, groups)
    return Template(_LOOP).substitute(
        x=loop.x,
        down=loop.down,
        rows=loop.rows,
        out=loop.out,
        out_down=loop.out_down,
        sums=loop.sums,
        least=loop.least,
        most=loop.most,
        after=loop.after,
        name=name,
        taken=_taken_lines(tile, loop.rows, loop.panels),
        fetch=_fetch_lines(),
        cases=" ".join(cases for cases, _ in both),
        calls="\n".join(calls for _, calls in both),
        middle=WIDTH // 2,
        half=HALF,
        width=WIDTH,
    )


def zeros(tile: Tile, name: str) -> str:
    """What sums begin with where there is no bias."""
    return f"\n@{name}_zeros = internal constant [{max(group_sizes(tile)) * WIDTH} x float] zeroinitializer, align 64\n"


_LOOP = """\
$taken
  %columns = call i64 @llvm.smin.i64(i64 %columns_left, i64 %columns_most)
  %is_half = icmp sle i64 %columns, $middle
  %more = select i1 %is_half, i64 $half, i64 0
  %bp = getelementptr float, ptr %bias, i64 %column
  %begin = select i1 %has_bias, ptr %bp, ptr @${name}_zeros
  %op = getelementptr float, ptr $out, i64 %column
  br label %block_of_sums

block_of_sums:
  %k = phi i64 [0, %panel], [%k_next, %next_block]
  %k_left = sub i64 %inputs, %k
  %block = call i64 @llvm.smin.i64(i64 %k_left, i64 $sums)
  %k_next = add i64 %k, $sums
  %is_first = icmp eq i64 %k, 0
  %is_last = icmp sge i64 %k_next, %inputs
  %low = select i1 %is_last, float $least, float 0xFFF0000000000000
  %high = select i1 %is_last, float $most, float 0x7FF0000000000000
  %ko = mul i64 %k, $width
  %wq = getelementptr float, ptr %wp, i64 %ko
  %start_down = select i1 %is_first, i64 0, i64 $out_down
  br label %tile

tile:
  %i = phi i64 [0, %block_of_sums], [%i_next, %next_tile]
  %todo = phi i64 [%tiles, %block_of_sums], [%todo_next, %next_tile]
  %rows_left = sub i64 $rows, %i
  %r0 = add i64 %rows_left, %todo
  %r1 = sub i64 %r0, 1
  %size_of = sdiv i64 %r1, %todo
  %xi0 = mul i64 %i, $down
  %xi = add i64 %xi0, %k
  %xq = getelementptr float, ptr $x, i64 %xi
  %oi = mul i64 %i, $out_down
  %oq = getelementptr float, ptr %op, i64 %oi
  %start = select i1 %is_first, ptr %begin, ptr %oq
$fetch
  %which_of_one = add i64 %size_of, %more
  %which = select i1 %are_several, i64 %group, i64 %which_of_one
  switch i64 %which, label %next_tile [$cases]
$calls
next_tile:
  %i_next = add i64 %i, %size_of
  %todo_next = sub i64 %todo, 1
  %no_tile = icmp eq i64 %todo_next, 0
  br i1 %no_tile, label %next_block, label %tile

next_block:
  br i1 %is_last, label %$after, label %block_of_sums
"""


def _fetch_lines() -> str:
    """What a tile fetches ahead, `%fetch`, and `%fetch_step` for each product, in two streams that are `%fetch_apart`
    bytes from each other: of several tiles that read one block of a panel, each its part of the next block; of a single
    one, lines that it reads soon.
    """
    line = WIDTH * 4
    lines = [
        "%is_alone = icmp eq i64 %tiles, 1",
        f"%part_step = sdiv i64 {line // 2}, %tiles",
        f"%fetch_step = select i1 %is_alone, i64 {line}, i64 %part_step",
        "%tile_number = sub i64 %tiles, %todo",
        "%half_part = mul i64 %block, %part_step",
        "%part = mul i64 %half_part, 2",
        f"%fetch_apart = select i1 %is_alone, i64 {line // 2}, i64 %half_part",
        "%parts = mul i64 %tile_number, %part",
        f"%block_bytes = mul i64 %block, {line}",
        "%in_next = add i64 %block_bytes, %parts",
        f"%fetch_at = select i1 %is_alone, i64 {_AHEAD * line}, i64 %in_next",
        "%fetch = getelementptr i8, ptr %wq, i64 %fetch_at",
    ]
    return "  " + "\n  ".join(lines)


def _taken_lines(tile: Tile, rows: str, panels_left: str) -> str:
    """How many panels are read at once, `%taken`, and their columns, `%columns_most`."""
    out, taken = [f"%is_one = icmp eq i64 {rows}, 1"], "1"
    for size in group_sizes(tile):
        out += [
            f"%wide{size} = icmp sge i64 %columns_left, {size * WIDTH}",
            f"%there{size} = icmp sge i64 {panels_left}, {size}",
            f"%fits{size} = and i1 %wide{size}, %there{size}",
            f"%takes{size} = and i1 %fits{size}, %is_one",
            f"%taken{size} = select i1 %takes{size}, i64 {size}, i64 {taken}",
        ]
        taken = f"%taken{size}"
    out += [f"%taken = add i64 {taken}, 0", f"%columns_most = mul i64 %taken, {WIDTH}"]
    out += ["%are_several = icmp sgt i64 %taken, 1", f"%group = add i64 %taken, {_GROUP}"]
    return "  " + "\n  ".join(out)


def _group_calls(tile: Tile, name: str, arguments: str) -> tuple[str, str]:
    """The cases of a switch over `%group`, and the calls of groups."""
    sizes = group_sizes(tile)
    cases = " ".join(f"i64 {size + _GROUP}, label %of_group{size}" for size in sizes)
    calls = "\n".join(
        f"of_group{size}:\n  call void @{name}_group{size}({arguments})\n  br label %next_tile" for size in sizes
    )
    return cases, calls


def _tile_calls(tile: Tile, name: str, arguments: str) -> tuple[str, str]:
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
