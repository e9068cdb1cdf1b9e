"""LLVM's text for a loop over rows: see `row_loop`.

    define void @kernel(ptr %row, i64 %from, i64 %to)   row: the elements of all rows, the pointers, the numbers, and
                                                        `row_loop.counts_of`, in slots of eight bytes; it runs the rows
                                                        that begin among the elements from one number to another

Sums are those of pieces of a row, added; within a piece, elements are added in the order that suits vectors, which is
the only freedom that LLVM gets: all other operations are rounded as they stand.

Source: the LLVM language reference.
"""

from __future__ import annotations

from dovetail.execute.native.formula import AT, ROW_SUMS, TOTAL
from dovetail.execute.native.llvm_function import Function
from dovetail.execute.native.operation_text import declarations, literal, operation_text
from dovetail.execute.native.row_loop import KEPT, RowLoop, Span
from dovetail.execute.native.sections import LOAD, OF_ROW, Sections, sections_of
from dovetail.execute.native.tile_text import ATTRIBUTES

_PIECE = 4096  # elements of a row that are added by themselves
_LEAST = "0xFFF0000000000000"
_SIZES = {"i8": 1, "float": 4, "i64": 8}
_LARGEST = "declare float @llvm.maximum.f32(float, float)"


def row_loop_text(loop: RowLoop, name: str) -> str:
    """A module with the kernel of a loop."""
    body = _Body(loop, name)
    text = body.text()
    return "\n".join([_entry(loop, name), text, *declarations("float"), _LARGEST, ""])


def _entry(loop: RowLoop, name: str) -> str:
    out = Function(f"define void @{name}(ptr %row, i64 %from, i64 %to)")
    count = len(loop.cells)
    columns = out.slot("%row", 1 + count + loop.numbers)
    given = [f"i64 {out.parts(edge, columns)}" for edge in ("%from", "%to")]
    given.append(f"i64 {columns}")
    given += [f"ptr {out.slot('%row', 1 + at, 'ptr')}" for at in range(count)]
    for at in range(loop.numbers):
        number = out.slot("%row", 1 + count + at, "double")
        given.append(f"float {out.set(f'fptrunc double {number} to float')}")
    given += [f"i64 {out.slot('%row', 2 + count + loop.numbers + at)}" for at in range(2 * count)]
    out.line(f"call void @{name}_body({', '.join(given)})")
    return out.finished()


class _Body:
    """The function of the loop. known: what is the same for all elements of a row, by instruction, so far."""

    def __init__(self, loop: RowLoop, name: str) -> None:
        self.loop = loop
        self.made: Sections = sections_of(loop)
        cells = range(len(loop.cells))
        given = ["i64 %from", "i64 %to", "i64 %columns", *(f"ptr noalias %c{at}" for at in cells)]
        given += [f"float %s{at}" for at in range(loop.numbers)]
        given += [f"i64 %{what}{at}" for at in cells for what in ("inner", "size")]
        self.out = Function(f"define internal void @{name}_body({', '.join(given)}) noinline {ATTRIBUTES}")
        self.known: dict[int, str] = {}
        self.places: list[str] = []
        self.buffers: dict[int, str] = {}

    def text(self) -> str:
        """The function."""
        out, made = self.out, self.made
        self.buffers = {at: out.memory(f"[{KEPT} x {self._stored(at)}]", 64) for at in sorted(made.kept)}
        for at, each in enumerate(made.instructions):
            if each.operation in ("constant", "number", "single"):
                self.known[at] = self._invariant(at)
        same = dict(self.known)
        with out.loop("%from", "%to") as row:
            self.known = dict(same)
            self.places = [self._place(cell, row) for cell in range(len(self.loop.cells))]
            for at, each in enumerate(made.instructions):
                if each.operation == OF_ROW:
                    self.known[at] = self._load(self.places[each.index], self._cell_type(each.index))
            for section in range(made.last + 1):
                self._section(section)
            for cell, (at, _) in made.stores.items():
                if self.loop.cells[cell].span is Span.EACH:
                    self._store(self._of_row(at), self.places[cell], self._cell_type(cell))
        return out.finished()

    def _place(self, cell: int, row: str) -> str:
        """Where a row's part of a cell begins."""
        out, kind, is_plain = self.out, self.loop.cells[cell].span, self.loop.cells[cell].is_plain
        if kind is Span.SINGLE or (kind is Span.PIECE and is_plain):
            return f"%c{cell}"
        if kind is Span.EACH and is_plain:
            index = row
        elif kind is Span.EACH:
            index = out.set(f"srem i64 {out.set(f'sdiv i64 {row}, %inner{cell}')}, %size{cell}")
        else:
            index = out.mul(row, f"%inner{cell}" if kind is Span.WHOLE else "%columns")
            if kind is Span.PIECE:
                index = out.set(f"srem i64 {index}, %size{cell}")
        return out.element(self._cell_type(cell), f"%c{cell}", index)

    def _section(self, section: int) -> None:
        """One way through the row."""
        out, made = self.out, self.made
        for at, is_same in enumerate(made.is_same):  # before the elements that use it
            is_stored = (at, section) in made.stores.values() and made.first[at] <= section
            if is_same and (section in made.wanted[at] or is_stored):
                self._of_row(at)
        sums = made.sums(section)
        totals = {at: out.variable("float", self._start(at, "0.0"), 4) for at in sums}  # torch gives no negative zero
        if sums:
            with out.loop("0", "%columns", str(_PIECE)) as piece:
                end = out.add(piece, str(_PIECE))
                is_last = out.set(f"icmp sgt i64 {end}, %columns")
                end = out.set(f"select i1 {is_last}, i64 %columns, i64 {end}")
                pieces = {at: out.variable("float", self._start(at, "-0.0"), 4) for at in sums}
                with out.loop(piece, end) as column:
                    self._elements(section, column, pieces)
                for at, total in totals.items():
                    self._grow(at, total, out.load("float", pieces[at]), "")
        else:
            with out.loop("0", "%columns") as column:
                self._elements(section, column, {})
        self.known.update({at: out.load("float", total) for at, total in totals.items()})

    def _start(self, at: int, zero: str) -> str:
        return zero if self.made.instructions[at].operation == TOTAL else _LEAST

    def _grow(self, at: int, total: str, value: str, flags: str) -> None:
        out, before = self.out, self.out.load("float", total)
        if self.made.instructions[at].operation == TOTAL:
            after = out.set(f"fadd {flags} float {before}, {value}")
        else:
            after = out.set(f"call float @llvm.maximum.f32(float {before}, float {value})")
        out.line(f"store float {after}, ptr {total}, align 4")

    def _elements(self, section: int, column: str, sums: dict[int, str]) -> None:
        """What is done with one element. sums: variables to which it is added."""
        made, values = self.made, dict[int, str]()
        for at in sorted(made.kept):
            if min(made.wanted[at]) == section:
                value = self._compute(at, section, column, values)
                self._store(value, self._element(self.buffers[at], self._stored(at), column), self._stored(at))
        for at, total in sums.items():
            (part,) = made.instructions[at].parts
            self._grow(at, total, self._compute(part, section, column, values), "reassoc")
        stores = {cell: at for cell, (at, within) in made.stores.items() if within == section}
        stores = {cell: at for cell, at in stores.items() if self.loop.cells[cell].span is Span.WHOLE}
        found = {cell: self._compute(at, section, column, values) for cell, at in stores.items()}
        for cell, value in found.items():
            element = self._element(self.places[cell], self._cell_type(cell), column)
            self._store(value, element, self._cell_type(cell))

    def _compute(self, at: int, section: int, column: str, values: dict[int, str]) -> str:
        """The name of an element's value in this section: computed, or read where it lies."""
        made, instruction = self.made, self.made.instructions[at]
        known = values.get(at) or (self._of_row(at) if made.is_same[at] else None)
        if known is not None:
            return known
        is_later = bool(made.wanted[at]) and min(made.wanted[at]) < section
        if at in self.buffers and is_later:
            value = self._load(self._element(self.buffers[at], self._stored(at), column), self._stored(at))
        elif instruction.operation == LOAD or (at in made.stored and is_later):
            cell = instruction.index if instruction.operation == LOAD else made.stored[at]
            place = self._element(self.places[cell], self._cell_type(cell), column)
            value = self._load(place, self._cell_type(cell))
        elif instruction.operation == AT:
            number = self.out.set(f"trunc i64 {self._of_row(instruction.parts[0])} to i32")
            value = self.out.set(f"icmp eq i32 {number}, {self.out.set(f'trunc i64 {column} to i32')}")
        else:
            parts = [self._compute(part, section, column, values) for part in instruction.parts]
            value = self.out.set(operation_text(self.out.set, "float", instruction.operation, parts))
        values[at] = value
        return value

    def _of_row(self, at: int) -> str:
        """The name of a value of the row."""
        if at not in self.known:
            instruction = self.made.instructions[at]
            assert instruction.operation not in ROW_SUMS, "sums are known from their section on"
            if instruction.operation == "columns":
                self.known[at] = self.out.set("sitofp i64 %columns to float")
            else:
                parts = [self._of_row(part) for part in instruction.parts]
                self.known[at] = self.out.set(operation_text(self.out.set, "float", instruction.operation, parts))
        return self.known[at]

    def _invariant(self, at: int) -> str:
        instruction = self.made.instructions[at]
        if instruction.operation == "number":
            return f"%s{instruction.index}"
        if instruction.operation == "single":
            return self._load(f"%c{instruction.index}", self._cell_type(instruction.index))
        return literal(float(instruction.number), "float")

    def _stored(self, at: int) -> str:
        return "i8" if self.made.is_truth[at] else "float"

    def _cell_type(self, cell: int) -> str:
        return self.loop.cells[cell].kind

    def _element(self, pointer: str, kind: str, index: str) -> str:
        return self.out.element(kind, pointer, index)

    def _load(self, element: str, kind: str) -> str:
        value = self.out.load(kind, element, _SIZES[kind])
        return self.out.set(f"icmp ne i8 {value}, 0") if kind == "i8" else value

    def _store(self, value: str, element: str, kind: str) -> None:
        if kind == "i8":
            value = self.out.set(f"zext i1 {value} to i8")
        self.out.line(f"store {kind} {value}, ptr {element}, align {_SIZES[kind]}")
