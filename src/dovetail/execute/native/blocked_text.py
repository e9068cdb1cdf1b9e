"""LLVM's text of products of matrices in blocks: see `blocked_products`.

    slots: items, pointers (result, first, second, start), sizes (rows, inner, columns), how far rows of the first and
    of the second operand lie apart, items of a share, how far rows of the start lie apart, whether there is one

The second operand is copied, a block of a panel at a time, so that lines of two vectors lie behind each other; tiles of
the result are summed in registers, over a block, one element of the first operand times one line at a time. A first
operand that is turned is copied as well, as many rows side by side as a tile has. Each element is the sum of its
blocks, each summed in order: the same for any number of threads.

Source: Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication" (2008); Van Zee and van de Geijn,
"BLIS" (2015).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from dovetail.execute.native.block_shapes import BLOCK, KEPT_ROWS, TURNED_ROWS, Form, Shape
from dovetail.execute.native.llvm_function import Function
from dovetail.execute.native.machine import AS_WRITTEN
from dovetail.execute.native.tile_lines import splat
from dovetail.execute.native.tile_text import ATTRIBUTES

_PITCH = BLOCK + 16  # of a copy of rows: those that lie a power of two apart share few lines of a cache
_LINE = 64  # bytes
_PANELS = 4  # that are copied at once: of rows that lie far apart, whole lines of the cache and pages are read


def blocked_text(form: Form, shape: Shape, name: str) -> str:
    """The module of such products."""
    tiles = [_tile(form, shape, name, rows) for rows in shape.heights]
    parts = [_product(form, shape, name), _any_tile(shape, name), *tiles]
    return "\n".join([AS_WRITTEN, *parts, _DECLARED.format(lanes=shape.lanes)])


_DECLARED = """
declare <{lanes} x float> @llvm.fma.v{lanes}f32(<{lanes} x float>, <{lanes} x float>, <{lanes} x float>)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare i64 @llvm.smin.i64(i64, i64)
declare void @llvm.prefetch.p0(ptr, i32, i32, i32)
"""


def _tile(form: Form, shape: Shape, name: str, rows: int) -> str:
    """A function: some rows by a block of a panel, stored or added to what is there."""
    v, lanes, vectors = f"<{shape.lanes} x float>", shape.lanes, range(2)
    out = [
        f"define internal void @{name}_tile{rows}(ptr noalias %a, i64 %down, ptr noalias %panel, ptr noalias %c,"
        f" i64 %pitch, i64 %count, i1 %adds, ptr %fetch, i64 %apart) noinline {ATTRIBUTES} {{",
        "entry:",
    ]
    for i in range(rows):
        out += [f"%ao{i} = mul i64 %down, {i}", f"%a{i} = getelementptr float, ptr %a, i64 %ao{i}"]
    out += ["br label %sum", "sum:", "%n = phi i64 [0, %entry], [%n_next, %sum]"]
    places = [(i, j) for i in range(rows) for j in vectors]
    out += [f"%c{i}_{j} = phi {v} [zeroinitializer, %entry], [%d{i}_{j}, %sum]" for i, j in places]
    out.append(f"%line = mul i64 %n, {shape.width}")
    for j in vectors:
        out.append(f"%at{j} = add i64 %line, {j * lanes}")
        out += [f"%wp{j} = getelementptr float, ptr %panel, i64 %at{j}", f"%w{j} = load {v}, ptr %wp{j}, align 32"]
    out += _fetched(form)
    for i in range(rows):
        if form.turned[0]:
            out += [f"%xo{i} = mul i64 %n, {shape.rows}", f"%xi{i} = add i64 %xo{i}, {i}"]
            out.append(f"%xp{i} = getelementptr float, ptr %a, i64 %xi{i}")
        else:
            out.append(f"%xp{i} = getelementptr float, ptr %a{i}, i64 %n")
        out += [f"%s{i} = load float, ptr %xp{i}, align 4", *splat(f"%v{i}", "float", f"%s{i}", lanes)]
        for j in vectors:
            out.append(f"%d{i}_{j} = call {v} @llvm.fma.v{lanes}f32({v} %v{i}, {v} %w{j}, {v} %c{i}_{j})")
    out += ["%n_next = add i64 %n, 1", "%is_last = icmp eq i64 %n_next, %count"]
    out += ["br i1 %is_last, label %done, label %sum", "done:"]
    for i in range(rows):
        out.append(f"%co{i} = mul i64 %pitch, {i}")
        for j in vectors:
            out += [
                f"%cj{i}_{j} = add i64 %co{i}, {j * lanes}",
                f"%cp{i}_{j} = getelementptr float, ptr %c, i64 %cj{i}_{j}",
            ]
    out += ["br i1 %adds, label %add, label %put", "put:"]
    out += [f"store {v} %d{i}_{j}, ptr %cp{i}_{j}, align 4" for i, j in places]
    out += ["ret void", "add:"]
    for i, j in places:
        out += [f"%e{i}_{j} = load {v}, ptr %cp{i}_{j}, align 4", f"%f{i}_{j} = fadd {v} %e{i}_{j}, %d{i}_{j}"]
        out.append(f"store {v} %f{i}_{j}, ptr %cp{i}_{j}, align 4")
    return "\n".join([*out, "ret void", "}", ""])


def _fetched(form: Form) -> list[str]:
    """Lines that ask for a line of the cache in each step: of the result where the first operand is turned, or of the
    second operand, where they come next.
    """
    lines = BLOCK * 4 // _LINE if form.turned[1] and not form.turned[0] else 1  # one row after the other has so many
    how = "i32 1, i32 3, i32 1" if form.turned[0] else "i32 0, i32 2, i32 1"  # to write, into the first cache
    return [
        f"%fetch_row = udiv i64 %n, {lines}",
        f"%fetch_line = urem i64 %n, {lines}",
        "%fetch_down = mul i64 %fetch_row, %apart",
        f"%fetch_across = mul i64 %fetch_line, {_LINE}",
        "%fetch_at = add i64 %fetch_down, %fetch_across",
        "%fetch_from = getelementptr i8, ptr %fetch, i64 %fetch_at",
        f"call void @llvm.prefetch.p0(ptr %fetch_from, {how})",
    ]


def _any_tile(shape: Shape, name: str) -> str:
    """A function: a tile with any of the heights, and with as many columns as there are."""
    head = "ptr %a, i64 %down, ptr %panel, ptr %c, i64 %pitch, i64 %count, i1 %adds, i64 %rows, i64 %columns"
    head += ", ptr %fetch, i64 %apart"
    out = Function(f"define internal void @{name}_part({head}) {ATTRIBUTES}")
    first = "ptr %a, i64 %down, ptr %panel"
    is_whole = out.set(f"icmp eq i64 %columns, {shape.width}")

    def call(rows: int, rest: str) -> str:
        return f"call void @{name}_tile{rows}({first}, {rest}, ptr %fetch, i64 %apart)"

    with out.when(is_whole):
        rest = "ptr %c, i64 %pitch, i64 %count, i1 %adds"
        out.switch("%rows", {rows: call(rows, rest) for rows in shape.heights})
    with out.when(out.set(f"xor i1 {is_whole}, true")):
        made = out.memory(f"[{shape.rows * shape.width} x float]", 64)
        rest = f"ptr {made}, i64 {shape.width}, i64 %count, i1 false"
        out.switch("%rows", {rows: call(rows, rest) for rows in shape.heights})
        with out.loop("0", "%rows") as row, out.loop("0", "%columns") as column:
            source = out.element("float", made, out.add(out.mul(row, str(shape.width)), column))
            target = out.element("float", "%c", out.add(out.mul(row, "%pitch"), column))
            found, before = out.load("float", source), out.variable("float", "-0.0", 4)
            with out.when("%adds"):
                out.line(f"store float {out.load('float', target)}, ptr {before}, align 4")
            whole = out.set(f"fadd float {found}, {out.load('float', before)}")
            out.line(f"store float {whole}, ptr {target}, align 4")
    return out.finished()


def _product(form: Form, shape: Shape, name: str) -> str:
    out = Function(f"define void @{name}(ptr %row, i64 %from, i64 %to) {ATTRIBUTES}")
    result, first, second, start = (out.slot("%row", at, "ptr") for at in (1, 2, 3, 4))
    rows, inner, columns, down, across, share, apart, has_start = (out.slot("%row", 5 + at) for at in range(8))
    begin, end = (out.parts(edge, share) for edge in ("%from", "%to"))
    has_start = out.set(f"icmp ne i64 {has_start}, 0")
    made = _Product(out, form, shape, name, result, first, second, rows, inner, columns, down, across, has_start)
    with out.when(has_start):
        made.begin_with(start, apart, begin, end)
    if form.turned[0]:
        made.by_rows(begin, end)
    else:
        made.by_columns(begin, end)
    return out.finished()


@dataclass(frozen=True, slots=True)
class _Product:
    """The lines of a product."""

    out: Function
    form: Form
    shape: Shape
    name: str
    result: str
    first: str
    second: str
    rows: str
    inner: str
    columns: str
    down: str
    across: str
    has_start: str

    def begin_with(self, start: str, apart: str, begin: str, end: str) -> None:
        """Copy what is added into the share of the result."""
        out = self.out
        if self.form.turned[0]:
            parts = out.parts(self.rows, str(TURNED_ROWS))
            top, bottom = (self._edge(edge, self.rows, parts) for edge in (begin, end))
            left, right = "0", self.columns
        else:
            top, bottom, width = "0", self.rows, str(self.shape.width)
            left, right = (out.least(out.mul(edge, width), self.columns) for edge in (begin, end))
        bytes_ = out.mul(out.set(f"sub i64 {right}, {left}"), "4")
        with out.loop(top, bottom) as row:
            into = out.element("float", self.result, out.add(out.mul(row, self.columns), left))
            source = out.element("float", start, out.add(out.mul(row, apart), left))
            out.line(f"call void @llvm.memcpy.p0.p0.i64(ptr {into}, ptr {source}, i64 {bytes_}, i1 false)")

    def by_columns(self, begin: str, end: str) -> None:
        """Some rows of the first operand, as many as are kept in a cache, by panels of the second one."""
        out, width = self.out, str(self.shape.width)
        left, right = (out.least(out.mul(edge, width), self.columns) for edge in (begin, end))
        kept = out.memory(f"[{KEPT_ROWS * _PITCH} x float]", 64)
        tops, blocks = self._split("0", None, self.rows, KEPT_ROWS), out.loop("0", self.inner, str(BLOCK))
        with tops as (_, top, height), blocks as block:
            count = out.least(out.set(f"sub i64 {self.inner}, {block}"), str(BLOCK))
            size = out.mul(count, "4")
            with out.loop("0", height) as row:
                into = out.element("float", kept, out.mul(row, str(_PITCH)))
                source = out.element("float", self.first, out.add(out.mul(out.add(top, row), self.down), block))
                out.line(f"call void @llvm.memcpy.p0.p0.i64(ptr {into}, ptr {source}, i64 {size}, i1 false)")
            panels = self._panels(left, right, block, count)
            with panels as (panel, column, wide), self._tiles(height) as (_, row, several):
                a = out.element("float", kept, out.mul(row, str(_PITCH)))
                self._tile(a, str(_PITCH), panel, out.add(top, row), column, count, block, several, wide)

    def by_rows(self, begin: str, end: str) -> None:
        """Some rows of the first operand, which is turned, by all panels."""
        out = self.out
        copied = out.memory(f"[{BLOCK * TURNED_ROWS} x float]", 64)
        tops, blocks = self._split(begin, end, self.rows, TURNED_ROWS), out.loop("0", self.inner, str(BLOCK))
        with tops as (_, top, height), blocks as block:
            count = out.least(out.set(f"sub i64 {self.inner}, {block}"), str(BLOCK))
            with self._tiles(height) as (at, row, several):
                into = out.element("float", copied, out.mul(at, str(BLOCK * self.shape.rows)))
                self._copy_turned(into, out.add(top, row), several, block, count)
            panels = self._panels("0", self.columns, block, count)
            with panels as (panel, column, wide), self._tiles(height) as (at, row, several):
                a = out.element("float", copied, out.mul(at, str(BLOCK * self.shape.rows)))
                self._tile(a, "0", panel, out.add(top, row), column, count, block, several, wide)

    @contextmanager
    def _panels(self, left: str, right: str, block: str, count: str) -> Iterator[tuple[str, str, str]]:
        """Lines for each panel of some columns: where its copy is, its first column, how many it has."""
        out, width, several = self.out, self.shape.width, _PANELS * self.shape.width
        copied = out.memory(f"[{BLOCK * several} x float]", 64)
        with out.loop(left, right, str(several)) as first:
            behind = out.least(out.add(first, str(several)), right)
            self._copy_panels(copied, block, count, first, behind)
            with out.loop(first, behind, str(width)) as column:
                place = out.mul(out.set(f"sub i64 {column}, {first}"), str(BLOCK))
                wide = out.least(out.set(f"sub i64 {behind}, {column}"), str(width))
                yield out.element("float", copied, place), column, wide

    @contextmanager
    def _split(self, begin: str, end: str | None, rows: str, most: int) -> Iterator[tuple[str, str, str]]:
        """Lines for each part of some rows, from one part to before another one: its number, its first row, how many it
        has. Parts are about equally large, and as few as have so many rows at most.
        """
        out, count = self.out, self.out.parts(rows, str(most))
        with out.loop(begin, end or count) as at:
            edges = [self._edge(edge, rows, count) for edge in (at, out.add(at, "1"))]
            yield at, edges[0], out.set(f"sub i64 {edges[1]}, {edges[0]}")

    def _tiles(self, rows: str) -> AbstractContextManager[tuple[str, str, str]]:
        """Lines for each tile of some rows."""
        return self._split("0", None, rows, self.shape.rows)

    def _edge(self, part: str, rows: str, count: str) -> str:
        return self.out.set(f"sdiv i64 {self.out.mul(part, rows)}, {count}")

    def _tile(
        self, a: str, down: str, panel: str, row: str, column: str, count: str, block: str, height: str, width: str
    ) -> None:
        out = self.out
        c = out.element("float", self.result, out.add(out.mul(row, self.columns), column))
        adds = out.set(f"or i1 {self.has_start}, {out.set(f'icmp ne i64 {block}, 0')}")
        given = [f"ptr {a}", f"i64 {down}", f"ptr {panel}", f"ptr {c}", f"i64 {self.columns}", f"i64 {count}"]
        given += [f"i1 {adds}", f"i64 {height}", f"i64 {width}", *self._next(c, row, column, block)]
        out.line(f"call void @{self.name}_part({', '.join(given)})")

    def _next(self, c: str, row: str, column: str, block: str) -> list[str]:
        """What is fetched meanwhile: where it is, and how many bytes its rows lie apart."""
        out, width = self.out, self.shape.width
        if self.form.turned[0]:
            return [f"ptr {out.element('float', c, str(width))}", f"i64 {out.mul(self.columns, '4')}"]
        ahead = out.add(column, str(_PANELS * width))
        down, across = (ahead, block) if self.form.turned[1] else (block, ahead)
        place = out.element("float", self.second, out.add(out.mul(down, self.across), across))
        return [f"ptr {place}", f"i64 {out.mul(self.across, '4')}"]

    def _copy_turned(self, into: str, row: str, rows: str, block: str, count: str) -> None:
        """Lay the rows of a tile of a turned first operand out side by side."""
        out, step = self.out, self.shape.rows
        start = out.element("float", self.first, out.add(out.mul(block, self.down), row))
        is_whole = out.set(f"icmp eq i64 {rows}, {step}")
        for condition, several in ((is_whole, str(step)), (out.set(f"xor i1 {is_whole}, true"), rows)):
            with out.when(condition), out.loop("0", count) as n:
                source = out.element("float", start, out.mul(n, self.down))
                target = out.element("float", into, out.mul(n, str(step)))
                with out.loop("0", several) as at:
                    value = out.load("float", out.element("float", source, at))
                    out.line(f"store float {value}, ptr {out.element('float', target, at)}, align 4")

    def _copy_panels(self, copied: str, block: str, count: str, first: str, behind: str) -> None:
        """Lay a block of panels out in lines; columns beyond the last are zeros."""
        out, width = self.out, self.shape.width
        whole = out.set(f"sub i64 {behind}, {first}")
        whole = out.add(first, out.set(f"and i64 {whole}, {-width}"))
        if self.form.turned[1]:
            with out.loop(first, whole, str(width)) as column:
                start = out.element("float", self.second, out.add(out.mul(column, self.across), block))
                self._turn(start, self._copy(copied, first, column), count)
        else:
            start = out.element("float", self.second, out.mul(block, self.across))
            with out.loop("0", count) as n:
                row = out.element("float", start, out.mul(n, self.across))
                with out.loop(first, whole, str(width)) as column:
                    v = f"<{width} x float>"
                    line = out.load(v, out.element("float", row, column))
                    target = out.element("float", self._copy(copied, first, column), out.mul(n, str(width)))
                    out.line(f"store {v} {line}, ptr {target}, align 32")
        with out.loop(whole, behind, str(width)) as column, out.loop("0", count) as n, out.loop("0", str(width)) as at:
            target = out.element("float", self._copy(copied, first, column), out.add(out.mul(n, str(width)), at))
            out.line(f"store float 0.0, ptr {target}, align 4")
            other = out.add(column, at)
            with out.when(out.set(f"icmp slt i64 {other}, {behind}")):
                down, across = (other, out.add(block, n)) if self.form.turned[1] else (out.add(block, n), other)
                value = out.load(
                    "float", out.element("float", self.second, out.add(out.mul(down, self.across), across))
                )
                out.line(f"store float {value}, ptr {target}, align 4")

    def _copy(self, copied: str, first: str, column: str) -> str:
        """Where the copy of a panel is."""
        return self.out.element("float", copied, self.out.mul(self.out.set(f"sub i64 {column}, {first}"), str(BLOCK)))

    def _turn(self, start: str, panel: str, count: str) -> None:
        """Turn squares of eight by eight; single lines behind them."""
        out, lines, eight = self.out, self.shape.width, "<8 x float>"
        whole = out.set(f"and i64 {count}, -8")
        for first in range(0, lines, 8):
            rows = [out.element("float", start, out.mul(self.across, str(first + at))) for at in range(8)]
            with out.loop("0", whole, "8") as n:
                found = [out.load(eight, out.element("float", row, n)) for row in rows]
                for at, line in enumerate(_turned(out, found)):
                    target = out.add(out.mul(out.add(n, str(at)), str(lines)), str(first))
                    out.line(f"store {eight} {line}, ptr {out.element('float', panel, target)}, align 32")
            with out.loop(whole, count) as n:
                for at, row in enumerate(rows):
                    value = out.load("float", out.element("float", row, n))
                    target = out.element("float", panel, out.add(out.mul(n, str(lines)), str(first + at)))
                    out.line(f"store float {value}, ptr {target}, align 4")


def _turned(out: Function, rows: list[str]) -> list[str]:
    """The columns of eight rows of eight, in three steps that each stay within pairs of vectors."""

    def pairs(given: list[str], apart: int, masks: tuple[str, str]) -> list[str]:
        found = list(given)
        for at in range(8):
            if not at & apart:
                for to, mask in zip((at, at + apart), masks, strict=True):
                    order = ", ".join(f"i32 {number}" for number in mask.split())
                    v = f"<8 x float> {given[at]}, <8 x float> {given[at + apart]}, <8 x i32> <{order}>"
                    found[to] = out.set(f"shufflevector {v}")
        return found

    once = pairs(rows, 1, ("0 8 1 9 4 12 5 13", "2 10 3 11 6 14 7 15"))
    twice = pairs(once, 2, ("0 1 8 9 4 5 12 13", "2 3 10 11 6 7 14 15"))
    thrice = pairs(twice, 4, ("0 1 2 3 8 9 10 11", "4 5 6 7 12 13 14 15"))
    return [thrice[at] for at in (0, 2, 1, 3, 4, 6, 5, 7)]
