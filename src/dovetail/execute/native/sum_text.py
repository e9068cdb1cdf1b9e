"""LLVM's text of the rows of sums: elements are added in the order in which torch's kernels add them.

    slots: 1, pointers (result, operand), rows, columns, divisor; the operand is a matrix of rows, one after the other

Of a squared error there are two operands, and what is added is the square of a difference. The second one lies `apart`
bytes behind the first.

A cascade adds sixteen rows, adds what it got to a sum of the next level, and goes on from zero; four chains of
additions run side by side. Vectors are of 32 bytes: torch compiles these kernels for AVX2 also where there is more.

Source: torch's `SumKernel.cpp` (`multi_row_sum`, `row_sum`, `vectorized_inner_sum`, `vectorized_outer_sum`).
"""

from __future__ import annotations

from functools import cache

from dovetail.execute.native.llvm_function import Function
from dovetail.execute.native.machine import AS_WRITTEN, function_of

_BYTES = {"float": 4, "double": 8}
_VECTOR = 32  # bytes
_CHAINS, _LEVELS, _STEP = 4, 4, 16
_ONE, _MANY = "one", "many"  # functions for elements, and for vectors of them


@cache
def sum_function(element: str, is_outer: bool, is_error: bool = False) -> int | None:
    """The address of the function of such rows. is_outer: whether it adds the rows up, not the elements of each row.
    is_error: whether it adds squared differences.
    """
    name = f"sum_{element}_{'outer' if is_outer else 'inner'}{'_error' if is_error else ''}"
    return function_of(_Text(name, element, is_error).text(is_outer), name, ())


class _Text:
    """The functions of a module. Those for elements and for vectors are the same but for the kind of what they add."""

    def __init__(self, name: str, element: str, is_error: bool) -> None:
        self.name = name
        self.element = element
        self.is_error = is_error
        self.width = _VECTOR // _BYTES[element]
        self.kinds = {_ONE: element, _MANY: f"<{self.width} x {element}>"}

    def text(self, is_outer: bool) -> str:
        """The module."""
        parts = [part(which) for which in (_ONE, _MANY) for part in (self._load, self._chains, self._row)]
        parts += [self._outer(), self._put()] if is_outer else [self._inner()]
        return "\n".join([AS_WRITTEN, *parts, self._entry()])

    def _load(self, which: str) -> str:
        """What is added: an element or a vector, or the square of a difference of two."""
        kind = self.kinds[which]
        out = Function(f"define internal {kind} @{self.name}_load_{which}(ptr %p, i64 %apart) alwaysinline")
        value = out.load(kind, "%p")
        if self.is_error:
            difference = out.set(f"fsub {kind} {value}, {out.load(kind, out.element('i8', '%p', '%apart'))}")
            value = out.set(f"fmul {kind} {difference}, {difference}")
        return out.finished(f"{kind} {value}")

    def _loaded(self, out: Function, which: str, pointer: str) -> str:
        return out.set(f"call {self.kinds[which]} @{self.name}_load_{which}(ptr {pointer}, i64 %apart)")

    def _chains(self, which: str) -> str:
        """Four chains of additions along rows, as a cascade: their sums."""
        kind, zero = self.kinds[which], "zeroinitializer" if which == _MANY else "0.0"
        given = "ptr %in, i64 %apart, i64 %down, i64 %across, i64 %size, ptr %out"
        out = Function(f"define internal void @{self.name}_chains_{which}({given})")
        sums = [[out.variable(kind, zero, _VECTOR) for _ in range(_CHAINS)] for _ in range(_LEVELS)]

        def add(into: str, value: str) -> None:
            total = out.set(f"fadd {kind} {out.load(kind, into, _VECTOR)}, {value}")
            out.line(f"store {kind} {total}, ptr {into}, align {_VECTOR}")

        def add_row(at: str) -> None:
            row = out.set(f"mul i64 {at}, %down")
            for chain in range(_CHAINS):
                behind = out.set(f"add i64 {row}, {out.set(f'mul i64 {chain}, %across')}")
                add(sums[0][chain], self._loaded(out, which, out.element("i8", "%in", behind)))

        def add_level(level: int, end: str) -> None:
            for low, high in zip(sums[level - 1], sums[level], strict=True):
                add(high, out.load(kind, low, _VECTOR))
                out.line(f"store {kind} {zero}, ptr {low}, align {_VECTOR}")
            if level + 1 < _LEVELS:
                rest = out.set(f"and i64 {end}, {(_STEP - 1) << (4 * level)}")
                with out.when(out.set(f"icmp eq i64 {rest}, 0")):
                    add_level(level + 1, end)

        whole = out.set(f"mul i64 {out.set(f'sdiv i64 %size, {_STEP}')}, {_STEP}")
        with out.loop("0", whole, str(_STEP)) as block:
            end = out.set(f"add i64 {block}, {_STEP}")
            with out.loop(block, end) as at:
                add_row(at)
            add_level(1, end)
        with out.loop(whole, "%size") as at:
            add_row(at)
        for chain in range(_CHAINS):
            for level in range(1, _LEVELS):
                add(sums[0][chain], out.load(kind, sums[level][chain], _VECTOR))
            total = out.load(kind, sums[0][chain], _VECTOR)
            out.line(f"store {kind} {total}, ptr {out.element(kind, '%out', str(chain))}, align {_VECTOR}")
        return out.finished()

    def _row(self, which: str) -> str:
        """The sum of one row, as four chains that are added."""
        kind = self.kinds[which]
        out = Function(f"define internal {kind} @{self.name}_row_{which}(ptr %in, i64 %apart, i64 %stride, i64 %size)")
        four = out.memory(f"[{_CHAINS} x {kind}]", _VECTOR)
        quarter, down = out.set(f"sdiv i64 %size, {_CHAINS}"), out.set(f"mul i64 %stride, {_CHAINS}")
        given = f"ptr %in, i64 %apart, i64 {down}, i64 %stride, i64 {quarter}, ptr {four}"
        out.line(f"call void @{self.name}_chains_{which}({given})")
        total = out.variable(kind, out.load(kind, four, _VECTOR), _VECTOR)

        def add(value: str) -> None:
            made = out.set(f"fadd {kind} {out.load(kind, total, _VECTOR)}, {value}")
            out.line(f"store {kind} {made}, ptr {total}, align {_VECTOR}")

        with out.loop(out.set(f"mul i64 {quarter}, {_CHAINS}"), "%size") as at:
            add(self._loaded(out, which, out.element("i8", "%in", out.set(f"mul i64 {at}, %stride"))))
        for chain in range(1, _CHAINS):
            add(out.load(kind, out.element(kind, four, str(chain))))
        return out.finished(f"{kind} {out.load(kind, total, _VECTOR)}")

    def _sum_of_row(self, out: Function, which: str, start: str, stride: str, size: str) -> str:
        given = f"ptr {start}, i64 %apart, i64 {stride}, i64 {size}"
        return out.set(f"call {self.kinds[which]} @{self.name}_row_{which}({given})")

    def _head(self) -> str:
        given = f"ptr %into, ptr %in, i64 %apart, i64 %rows, i64 %columns, {self.element} %by"
        return f"define internal void @{self.name}_all({given})"

    def _inner(self) -> str:
        """The sum of each row: of its vectors, whose elements are added to what is left, one by one."""
        out, element, vector = Function(self._head()), self.element, self.kinds[_MANY]
        whole = out.set(f"sdiv i64 %columns, {self.width}")
        is_wide = out.set(f"icmp sge i64 %columns, {self.width}")
        is_narrow = out.set(f"xor i1 {is_wide}, true")
        total = out.variable(element, "0.0")

        def add(value: str) -> None:
            made = out.set(f"fadd {element} {out.load(element, total)}, {value}")
            out.line(f"store {element} {made}, ptr {total}, align 8")

        with out.loop("0", "%rows") as row:
            start = out.element(element, "%in", out.set(f"mul i64 {row}, %columns"))
            with out.when(is_narrow):
                made = self._sum_of_row(out, _ONE, start, str(_BYTES[element]), "%columns")
                out.line(f"store {element} {made}, ptr {total}, align 8")
            with out.when(is_wide):
                sums = self._sum_of_row(out, _MANY, start, str(_VECTOR), whole)
                out.line(f"store {element} 0.0, ptr {total}, align 8")
                with out.loop(out.set(f"mul i64 {whole}, {self.width}"), "%columns") as at:
                    add(self._loaded(out, _ONE, out.element(element, start, at)))
                for lane in range(self.width):
                    add(out.set(f"extractelement {vector} {sums}, i64 {lane}"))
            mean = out.set(f"fdiv {element} {out.load(element, total)}, %by")
            out.line(f"store {element} {mean}, ptr {out.element(element, '%into', row)}")
        return out.finished()

    def _outer(self) -> str:
        """The sum of each column: four vectors of columns at once, then single vectors, then single columns. Where
        there are fewer than a vector has, four columns at once.
        """
        out, element, vector = Function(self._head()), self.element, self.kinds[_MANY]
        four = out.memory(f"[{_CHAINS} x {vector}]", _VECTOR)
        length = out.set(f"mul i64 %columns, {_BYTES[element]}")

        def whole(step: int) -> str:
            return out.set(f"mul i64 {out.set(f'sdiv i64 %columns, {step}')}, {step}")

        def put(at: str, count: int) -> None:
            out.line(f"call void @{self.name}_put(ptr %into, i64 {at}, ptr {four}, i64 {count}, {element} %by)")

        def add_chains(which: str, at: str, across: int, count: int) -> None:
            given = (
                f"ptr {out.element(element, '%in', at)}, i64 %apart, i64 {length}, i64 {across}, i64 %rows, ptr {four}"
            )
            out.line(f"call void @{self.name}_chains_{which}({given})")
            put(at, count)

        def add_row(which: str, at: str, count: int) -> None:
            made = self._sum_of_row(out, which, out.element(element, "%in", at), length, "%rows")
            out.line(f"store {self.kinds[which]} {made}, ptr {four}, align {_VECTOR}")
            put(at, count)

        blocks, vectors, fours = whole(_CHAINS * self.width), whole(self.width), whole(_CHAINS)
        is_broad = out.set(f"icmp sge i64 %columns, {self.width}")
        with out.loop("0", blocks, str(_CHAINS * self.width)) as at:
            add_chains(_MANY, at, _VECTOR, _CHAINS * self.width)
        with out.loop(blocks, vectors, str(self.width)) as at:
            add_row(_MANY, at, self.width)
        with out.loop("0", out.set(f"select i1 {is_broad}, i64 0, i64 {fours}"), str(_CHAINS)) as at:
            add_chains(_ONE, at, _BYTES[element], _CHAINS)
        with out.loop(out.set(f"select i1 {is_broad}, i64 {vectors}, i64 {fours}"), "%columns") as at:
            add_row(_ONE, at, 1)
        return out.finished()

    def _put(self) -> str:
        """Sums, divided."""
        element = self.element
        given = f"ptr %into, i64 %at, ptr %sums, i64 %count, {element} %by"
        out = Function(f"define internal void @{self.name}_put({given})")
        start = out.element(element, "%into", "%at")
        with out.loop("0", "%count") as i:
            mean = out.set(f"fdiv {element} {out.load(element, out.element(element, '%sums', i))}, %by")
            out.line(f"store {element} {mean}, ptr {out.element(element, start, i)}")
        return out.finished()

    def _entry(self) -> str:
        out = Function(f"define void @{self.name}(ptr %row, i64 %from, i64 %to)")
        into, first = out.slot("%row", 1, "ptr"), out.slot("%row", 2, "ptr")
        behind, apart = 3, "0"
        if self.is_error:
            behind, apart = 4, out.set(f"sub i64 {out.slot('%row', 3)}, {out.slot('%row', 2)}")
        rows, columns = out.slot("%row", behind), out.slot("%row", behind + 1)
        by = out.slot("%row", behind + 2, self.element)
        given = f"ptr {into}, ptr {first}, i64 {apart}, i64 {rows}, i64 {columns}, {self.element} {by}"
        out.line(f"call void @{self.name}_all({given})")
        return out.finished()
