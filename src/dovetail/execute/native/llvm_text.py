"""LLVM's text for a loop.

    define void @kernel(ptr %row, i64 %from, i64 %to)   row: the count, the pointers, the numbers, and how cells are
                                                        repeated or where rows lie, in slots of eight bytes; it runs the
                                                        elements from one number to another
    define internal void @kernel_body(...)              the same by value; its pointers are noalias, so that loops
                                                        become vectors

Where vector functions are called, or cells are repeated, elements are taken in tiles. Of a repeated cell each tile gets
its elements one after the other.

No flag of fast arithmetic is ever set: an operation is rounded as it stands. A multiplication and an addition are one
only where the formula says `fma`.

Source: the LLVM language reference.
"""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.execute.native.loop import Loop
from dovetail.execute.native.operation_text import BITS, declarations, literal, operation_text
from dovetail.execute.native.stages import VECTOR, Staged, staged
from dovetail.execute.native.tile_functions import repeat_name, repeat_text, tile_function, vector_bytes
from dovetail.execute.native.tile_text import ATTRIBUTES

TILE = 256
"""Elements of which vector functions are called at once."""

_RESTS = {"rest": ("%rest", 2), "rest of one": ("%rest_of_one", 1)}
"""Where the elements begin that come after the last full pair of vectors, or the last full vector."""


def symbols_of(loop: Loop) -> tuple[str, ...]:
    """The functions of torch's library, or of those that it needs, which a loop calls; "" for one that is not there."""
    called = [tile_function(name, loop.element) for name in _called(loop)]
    return tuple(dict.fromkeys(symbol for each in called for symbol in each.declared))


def _called(loop: Loop) -> tuple[str, ...]:
    names = [i.operation.removeprefix(VECTOR) for i in staged(loop).instructions if i.operation.startswith(VECTOR)]
    return tuple(dict.fromkeys(names))


def kernel_text(loop: Loop, name: str) -> str:
    """A module with the kernel of a loop."""
    return _Writer(loop, name).text()


class _Writer:
    def __init__(self, loop: Loop, name: str) -> None:
        self.loop = loop
        self.name = name
        self.staged: Staged = staged(loop)
        self.type = loop.element
        self.tiled = bool(self.staged.last or loop.repeated)
        self.out: list[str] = []
        self.count = 0

    def text(self) -> str:
        self._write_entry()
        self._write_body()
        self.out += declarations(self.type)
        self.out += [f"declare i64 @llvm.{which}.i64(i64, i64)" for which in ("smax", "smin")]
        called = [tile_function(name, self.type) for name in _called(self.loop)]
        self.out += dict.fromkeys(line for each in called for line in each.declared.values())
        self.out += [each.text for each in called]
        fills = {(self.loop.cells[at].repeats, self._cell_type(at)) for at in self.loop.repeated}
        self.out += [repeat_text(*each) for each in sorted(fills)]
        return "\n".join(self.out) + "\n"

    def _fresh(self) -> str:
        self.count += 1
        return f"%v{self.count}"

    def _line(self, text: str) -> None:
        self.out.append(f"  {text}")

    def _set(self, text: str) -> str:
        name = self._fresh()
        self._line(f"{name} = {text}")
        return name

    def _parameters(self) -> list[str]:
        cells = [f"ptr noalias %c{at}" for at in range(len(self.loop.cells))]
        counts = [f"i64 %{what}{at}" for at in self.loop.repeated for what in ("inner", "size")]
        return ["i64 %from", "i64 %n", *cells, *(f"{self.type} %s{at}" for at in range(self.loop.numbers)), *counts]

    def _write_entry(self) -> None:
        self.out += [f"define void @{self.name}(ptr %row, i64 %from, i64 %to) {{", "entry:"]
        given = ["i64 %from", "i64 %to"]
        self._line("%some = icmp sgt i64 %to, %from")
        self._line("br i1 %some, label %start, label %end")
        self.out.append("start:")
        for at in range(len(self.loop.cells)):
            given.append("ptr " + self._set(f"load ptr, ptr {self._slot(1 + at)}"))
        for at in range(self.loop.numbers):
            number = self._set(f"load double, ptr {self._slot(1 + len(self.loop.cells) + at)}")
            if self.type != "double":
                number = self._set(f"fptrunc double {number} to {self.type}")
            given.append(f"{self.type} {number}")
        counts = [
            self._set(f"load i64, ptr {self._slot(at)}")
            for at in range(1 + len(self.loop.cells) + self.loop.numbers, self.loop.slots)
        ]
        if self.loop.in_rows:
            self._write_rows(given, *counts)
        else:
            self._line(f"call void @{self.name}_body({', '.join([*given, *(f'i64 {count}' for count in counts)])})")
            self._line("br label %end")
        self.out += ["end:", "  ret void", "}", ""]

    def _write_rows(self, given: Sequence[str], inner: str, *pitches: str) -> None:
        """Run each row, or the part of it that is asked for. given: what the body takes. inner: elements of a row."""
        self._line("br label %rows")
        self.out.append("rows:")
        self._line("%at = phi i64 [%from, %start], [%behind, %rows]")
        row, first = self._set(f"sdiv i64 %at, {inner}"), self._set(f"srem i64 %at, {inner}")
        wanted = self._set(f"add i64 {first}, {self._set('sub i64 %to, %at')}")
        last = self._set(f"call i64 @llvm.smin.i64(i64 {wanted}, i64 {inner})")
        moved = []
        for at, pitch in enumerate(pitches):
            start = self._set(f"mul i64 {row}, {pitch}")
            pointer = given[2 + at].removeprefix("ptr ")
            moved.append("ptr " + self._set(f"getelementptr {self._cell_type(at)}, ptr {pointer}, i64 {start}"))
        numbers = given[2 + len(pitches) :]
        self._line(f"call void @{self.name}_body({', '.join([f'i64 {first}', f'i64 {last}', *moved, *numbers])})")
        self._line(f"%behind = add i64 %at, {self._set(f'sub i64 {last}, {first}')}")
        self._line("%is_all = icmp sge i64 %behind, %to")
        self._line("br i1 %is_all, label %end, label %rows")

    def _slot(self, at: int) -> str:
        return self._set(f"getelementptr i64, ptr %row, i64 {at}")

    def _write_body(self) -> None:
        made = self.staged
        self.out += [
            f"define internal void @{self.name}_body({', '.join(self._parameters())}) noinline {ATTRIBUTES} {{",
            "entry:",
        ]
        self.known = {at: self._invariant(at) for at in range(len(made.instructions)) if made.is_invariant(at)}
        self.buffers = {at: self._set(f"alloca [{TILE} x {self._stored(at)}], align 64") for at in made.kept}
        for at in self.loop.repeated:
            self._line(f"%r{at} = alloca [{TILE} x {self._cell_type(at)}], align 64")
        self._line("%items = sub i64 %n, %from")
        for first, vectors in _RESTS.values():
            over = self._set(f"srem i64 %items, {vectors * vector_bytes() * 8 // BITS[self.type]}")
            self._line(f"{first} = sub i64 %n, {over}")
        self._line("br label %tiles")
        self.out.append("tiles:")
        self._line("%first = phi i64 [%from, %entry], [%next, %tile_done]")
        self._line(f"%next = add i64 %first, {TILE}")
        self._line("%is_last = icmp sge i64 %next, %n")
        self._line("%tile_end = select i1 %is_last, i64 %n, i64 %next" if self.tiled else "%tile_end = add i64 %n, 0")
        count = self._set("sub i64 %tile_end, %first")
        for at in self.loop.repeated:
            given = f"ptr %c{at}, i64 %first, i64 {count}, i64 %inner{at}, i64 %size{at}, ptr %r{at}"
            self._line(f"call void @{repeat_name(self.loop.cells[at].repeats, self._cell_type(at))}({given})")
        self._line("br label %stage0")
        for stage in range(made.last + 1):
            self._write_stage(stage)
        self.out.append("tile_done:")
        self._line(f"br i1 {'%is_last' if self.tiled else 'true'}, label %end, label %tiles")
        self.out += ["end:", "  ret void", "}", ""]

    def _write_stage(self, stage: int) -> None:
        made = self.staged
        self.out.append(f"stage{stage}:")
        if stage:
            self._call_vectors(stage)
        self._line(f"br label %loop{stage}")
        self.out.append(f"loop{stage}:")
        here = f"%i{stage}"
        self._line(f"{here} = phi i64 [%first, %stage{stage}], [%i{stage}_next, %loop{stage}]")
        at_tile = self._set(f"sub i64 {here}, %first") if self.tiled else here
        values: dict[int, str] = {}
        for cell, at in made.stores.items():
            if made.store_stage[cell] == stage:
                self._compute(at, stage, here, at_tile, values)
        for at in made.kept:
            if made.stage[at] == stage and not made.instructions[at].operation.startswith(VECTOR):
                value = self._compute(at, stage, here, at_tile, values)
                self._store(value, self._element(self.buffers[at], self._stored(at), at_tile), made.is_truth[at])
        for cell, at in made.stores.items():
            if made.store_stage[cell] == stage:
                element = self._element(f"%c{cell}", self._cell_type(cell), here)
                self._store(values.get(at) or self.known[at], element, self.loop.cells[cell].is_truth)
        self._line(f"%i{stage}_next = add i64 {here}, 1")
        self._line(f"%i{stage}_done = icmp sge i64 %i{stage}_next, %tile_end")
        following = f"stage{stage + 1}" if stage < made.last else "tile_done"
        self._line(f"br i1 %i{stage}_done, label %{following}, label %loop{stage}")

    def _call_vectors(self, stage: int) -> None:
        count, rest = self._set("sub i64 %tile_end, %first"), self._set("sub i64 %rest, %first")
        for at, instruction in enumerate(self.staged.instructions):
            if instruction.operation.startswith(VECTOR) and self.staged.stage[at] == stage:
                function = tile_function(instruction.operation.removeprefix(VECTOR), self.type)
                source, into = self.buffers[instruction.parts[0]], self.buffers[at]
                self._line(f"call void @{function.name}(i64 {count}, i64 {rest}, ptr {source}, ptr {into})")

    def _compute(self, at: int, stage: int, here: str, at_tile: str, values: dict[int, str]) -> str:
        """The name of an instruction's value in this stage: computed here, or read from where it was kept."""
        known = self.known.get(at) or values.get(at)
        if known is not None:
            return known
        made, instruction = self.staged, self.staged.instructions[at]
        is_vector = instruction.operation.startswith(VECTOR)
        if at in self.buffers and (is_vector or made.stage[at] < stage):
            value = self._load(self._element(self.buffers[at], self._stored(at), at_tile), made.is_truth[at])
        elif instruction.operation == "load":
            is_repeated = self.loop.cells[instruction.index].repeats
            pointer, place = (f"%{'r' if is_repeated else 'c'}{instruction.index}", at_tile if is_repeated else here)
            element = self._element(pointer, self._cell_type(instruction.index), place)
            value = self._load(element, self.loop.cells[instruction.index].is_truth)
        else:
            parts = [self._compute(part, stage, here, at_tile, values) for part in instruction.parts]
            value = self._set(self._operation(instruction.operation, parts, here))
        values[at] = value
        return value

    def _operation(self, operation: str, parts: Sequence[str], here: str) -> str:
        if operation in _RESTS:
            return f"icmp sge i64 {here}, {_RESTS[operation][0]}"
        return operation_text(self._set, self.type, operation, parts)

    def _invariant(self, at: int) -> str:
        instruction = self.staged.instructions[at]
        if instruction.operation == "number":
            return f"%s{instruction.index}"
        if instruction.operation == "single":
            return self._load(f"%c{instruction.index}", self.loop.cells[instruction.index].is_truth)
        return literal(float(instruction.number), self.type)

    def _stored(self, at: int) -> str:
        return "i8" if self.staged.is_truth[at] else self.type

    def _cell_type(self, cell: int) -> str:
        return "i8" if self.loop.cells[cell].is_truth else self.type

    def _element(self, pointer: str, kind: str, index: str) -> str:
        return self._set(f"getelementptr {kind}, ptr {pointer}, i64 {index}")

    def _load(self, element: str, is_truth: bool) -> str:
        if is_truth:
            return self._set(f"icmp ne i8 {self._set(f'load i8, ptr {element}, align 1')}, 0")
        return self._set(f"load {self.type}, ptr {element}, align {BITS[self.type] // 8}")

    def _store(self, value: str, element: str, is_truth: bool) -> None:
        if is_truth:
            self._line(f"store i8 {self._set(f'zext i1 {value} to i8')}, ptr {element}, align 1")
        else:
            self._line(f"store {self.type} {value}, ptr {element}, align {BITS[self.type] // 8}")
