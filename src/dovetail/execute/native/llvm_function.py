"""A function of LLVM's text as it grows: values, variables, counted loops and conditions.

    out = Function("define void @zeros(ptr %to, i64 %count)")
    with out.loop("0", "%count") as i:
        out.line(f"store i64 0, ptr {out.element('i64', '%to', i)}")
    out.finished()

Variables lie in memory of the function's own; LLVM puts them in registers. Each value gets a name, which is returned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

NOT_UNROLLED = ", !llvm.loop !0"
"""The mark of a loop that stays one, however often it runs; the module ends with `MARKS`."""

MARKS = '!0 = distinct !{!0, !1}\n!1 = !{!"llvm.loop.unroll.disable"}\n'


class Function:
    """head: from `define` to the parameters, whose names are not numbers."""

    def __init__(self, head: str) -> None:
        self._head = head
        self._entry: list[str] = []
        self._lines: list[str] = []
        self._count = 0

    def line(self, text: str) -> None:
        """An instruction without a result."""
        self._lines.append(f"  {text}")

    def set(self, text: str) -> str:
        """An instruction with a result."""
        name = f"%v{self._number()}"
        self.line(f"{name} = {text}")
        return name

    def add(self, a: str, b: str) -> str:
        """A sum of two numbers of 64 bits."""
        return self.set(f"add i64 {a}, {b}")

    def mul(self, a: str, b: str) -> str:
        """A product of two numbers of 64 bits."""
        return self.set(f"mul i64 {a}, {b}")

    def parts(self, count: str, size: str) -> str:
        """How many parts of a size there are of so many things, the last one smaller perhaps."""
        return self.set(f"sdiv i64 {self.add(count, self.add(size, '-1'))}, {size}")

    def share(self, items: str, jobs: str) -> tuple[str, str]:
        """The first of the jobs of a share of a row's work (`%from` to `%to` of its items), and the one behind the
        last.
        """
        first, end = (self.parts(self.mul(bound, jobs), items) for bound in ("%from", "%to"))
        return first, end

    def least(self, a: str, b: str) -> str:
        """The lesser of two numbers of 64 bits; the module declares `llvm.smin.i64`."""
        return self.set(f"call i64 @llvm.smin.i64(i64 {a}, i64 {b})")

    def spread(self, kind: str, value: str, lanes: int) -> str:
        """A vector of one value, so many times."""
        one = self.set(f"insertelement <{lanes} x {kind}> poison, {kind} {value}, i64 0")
        zeros = f"<{lanes} x i32> zeroinitializer"
        return self.set(f"shufflevector <{lanes} x {kind}> {one}, <{lanes} x {kind}> poison, {zeros}")

    def memory(self, kind: str, align: int = 8) -> str:
        """Memory of the function's own, a pointer to it."""
        name = f"%m{self._number()}"
        self._entry.append(f"  {name} = alloca {kind}, align {align}")
        return name

    def variable(self, kind: str, value: str, align: int = 8) -> str:
        """The same, with a value in it."""
        made = self.memory(kind, align)
        self.line(f"store {kind} {value}, ptr {made}, align {align}")
        return made

    def element(self, kind: str, start: str, index: str) -> str:
        """The address of an element."""
        return self.set(f"getelementptr {kind}, ptr {start}, i64 {index}")

    def load(self, kind: str, pointer: str, align: int = 4) -> str:
        """What is in memory."""
        return self.set(f"load {kind}, ptr {pointer}, align {align}")

    def slot(self, row: str, at: int, kind: str = "i64") -> str:
        """What is in a slot of eight bytes of a row of the driver's table."""
        return self.load(kind, self.element("i64", row, str(at)))

    @contextmanager
    def loop(self, start: str, end: str, step: str = "1", *, mark: str = "") -> Iterator[str]:
        """Lines for each number from one to before another one, if there are any. mark: see `NOT_UNROLLED`."""
        number = self._number()
        counter = self.variable("i64", start)
        self._label(f"next{number}")
        at = self.load("i64", counter, 8)
        self.line(f"br i1 {self.set(f'icmp slt i64 {at}, {end}')}, label %each{number}, label %after{number}")
        self._lines.append(f"each{number}:")
        yield at
        self.line(f"store i64 {self.set(f'add i64 {at}, {step}')}, ptr {counter}, align 8")
        self.line(f"br label %next{number}{mark}")
        self._lines.append(f"after{number}:")

    @contextmanager
    def until(self) -> Iterator[Callable[[str], None]]:
        """Lines again and again, until what is yielded has been called with a truth value that holds."""
        number = self._number()
        self._label(f"again{number}")

        def stop(condition: str) -> None:
            more = self._number()
            self.line(f"br i1 {condition}, label %after{number}, label %more{more}")
            self._lines.append(f"more{more}:")

        yield stop
        self.line(f"br label %again{number}")
        self._lines.append(f"after{number}:")

    @contextmanager
    def when(self, condition: str) -> Iterator[None]:
        """Lines for where a truth value holds."""
        number = self._number()
        self.line(f"br i1 {condition}, label %then{number}, label %after{number}")
        self._lines.append(f"then{number}:")
        yield
        self._label(f"after{number}")

    def switch(self, number: str, cases: Mapping[int, str]) -> None:
        """One of some instructions, by a number; none for other numbers."""
        mark = self._number()
        chosen = " ".join(f"i64 {each}, label %case{mark}_{each}" for each in cases)
        self.line(f"switch i64 {number}, label %after{mark} [{chosen}]")
        for each, text in cases.items():
            self._lines += [f"case{mark}_{each}:", f"  {text}", f"  br label %after{mark}"]
        self._lines.append(f"after{mark}:")

    def leave(self, condition: str, result: str) -> None:
        """Return where a truth value holds. result: its type and the value."""
        number = self._number()
        self.line(f"br i1 {condition}, label %leave{number}, label %after{number}")
        self._lines += [f"leave{number}:", f"  ret {result}", f"after{number}:"]

    def attempt(self, call: str, into: str = "") -> str:
        """Call a function of C++: whether it threw an exception, which ends here. The head names a `personality`.
        into: where its result, a pointer, is put.
        """
        number = self._number()
        thrown = self.variable("i1", "false", 1)
        result = f"%r{number} = " if into else ""
        self.line(f"{result}invoke {call} to label %done{number} unwind label %caught{number}")
        self._lines.append(f"done{number}:")
        if into:
            self.line(f"store ptr %r{number}, ptr {into}, align 8")
        self.line(f"br label %after{number}")
        self._lines.append(f"caught{number}:")
        pair = self.set("landingpad { ptr, i32 } catch ptr null")
        caught = self.set(f"extractvalue {{ ptr, i32 }} {pair}, 0")
        self.set(f"call ptr @__cxa_begin_catch(ptr {caught})")
        self.line("call void @__cxa_end_catch()")
        self.line(f"store i1 true, ptr {thrown}, align 1")
        self._label(f"after{number}")
        return self.load("i1", thrown, 1)

    def finished(self, result: str = "void") -> str:
        """The text of the function, which returns a result: its type and the value."""
        return "\n".join([f"{self._head} {{", "entry:", *self._entry, *self._lines, f"  ret {result}", "}", ""])

    def _label(self, name: str) -> None:
        self.line(f"br label %{name}")
        self._lines.append(f"{name}:")

    def _number(self) -> int:
        self._count += 1
        return self._count
