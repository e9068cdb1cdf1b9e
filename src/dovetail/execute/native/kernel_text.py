"""LLVM's text of the rows of kernels: a call of a function of torch's library, with handles of tensors.

    slots: 1, pointers (one for each tensor), then for each tensor sizes and strides, then the numbers that arguments
    take, in their order

Handles live as long as the row. An exception ends here; the row has failed then.

Source: the Itanium C++ ABI: a result that is no plain memory is written where the first argument says, and an optional
        number for which no registers are left lies on the stack.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from dovetail.execute.native.llvm_function import Function
from dovetail.execute.native.machine import function_of
from dovetail.torch_compat.native_kernels import CATCHING, CREATE, EMPTY, kernel_address
from dovetail.torch_compat.native_tensors import DATA, DELETE

_NUMBERS = {"whole": "", "real": "", "int": "i32", "flag": "i1 zeroext"}
"""Kinds of arguments that are numbers, and what they are as arguments where that is shorter than a slot."""

_DECLARED = f"""declare i32 @__gxx_personality_v0(...)
declare ptr @__cxa_begin_catch(ptr)
declare void @__cxa_end_catch()
declare i32 @{CREATE}(ptr, i64, ptr, ptr, i64, i32, i32, i32, ptr)
declare i32 @{DELETE}(ptr)
declare i32 @{EMPTY}(ptr)
declare i32 @{DATA}(ptr, ptr)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
"""


@dataclass(frozen=True, slots=True)
class Taken:
    """An argument of a function, as text depends on it. kind:

    tensor: the one of an index, by reference or as a pointer; zeros: the same, after its memory was zeroed.
    given: an optional tensor, by value; nothing: one that there is none of.
    references: where the function puts references to its results. new: where it puts a new tensor, whose elements are
    copied into the first one. whole, int, flag, real: numbers. maybe: an optional real number, on the stack.
    code: of a dtype. text: some characters.
    """

    kind: str
    index: int = 0
    text: str = ""


def kernel_function(name: str, tensors: Sequence[tuple[int, int]], taken: Sequence[Taken]) -> int | None:
    """The address of the function of such rows. tensors: dimensions and the code of the dtype, of each."""
    return _function(name, tuple(tensors), tuple(taken))


@cache
def _function(name: str, tensors: tuple[tuple[int, int], ...], taken: tuple[Taken, ...]) -> int | None:
    address = kernel_address(name)
    if address is None:
        return None
    text = _Text(f"row_{name}", f"torch_{name}", tensors, taken).text()
    return function_of(text, f"row_{name}", (CREATE, DELETE, EMPTY, DATA, *CATCHING), {f"torch_{name}": address})


class _Text:
    """A module. at: the next slot that is read. places: of each tensor, its memory, sizes and strides."""

    def __init__(self, name: str, target: str, tensors: Sequence[tuple[int, int]], taken: Sequence[Taken]) -> None:
        self.name, self.target, self.tensors, self.taken = name, target, tensors, taken
        head = f"define void @{name}(ptr %row, i64 %from, i64 %to) personality ptr @__gxx_personality_v0"
        self.out = Function(head)
        self.at = 1 + len(tensors)
        self.constants: list[str] = []
        self.places: list[tuple[str, str, str]] = []
        self.handles: list[str] = []
        self.given: list[tuple[str, str]] = []
        self.failed = self.new = ""

    def text(self) -> str:
        """The text of the module."""
        out = self.out
        self.failed = out.variable("i1", "false", 1)
        for index, (dims, code) in enumerate(self.tensors):
            self.handles.append(out.variable("ptr", "null"))
            memory = out.slot("%row", 1 + index, "ptr")
            sizes, strides = (out.element("i64", "%row", str(self.at + shift)) for shift in (0, dims))
            self.at += 2 * dims
            self.places.append((memory, sizes, strides))
            layout = f"ptr {memory}, i64 {dims}, ptr {sizes}, ptr {strides}, i64 0"
            self._try(f"{CREATE}({layout}, i32 {code}, i32 0, i32 0, ptr {self.handles[-1]})")
        given = [argument for each in self.taken for argument in self._argument(each)]
        with out.when(self._goes_on()):
            threw = out.attempt(f"void @{self.target}({', '.join(given)})")
            out.line(f"store i1 {threw}, ptr {self.failed}, align 1")
        for tensor, memory in self.given:  # the function may have taken it
            with out.when(out.set(f"icmp ne i64 {out.load('i64', memory, 8)}, 0")):
                out.line(f"store i64 {out.load('i64', memory, 8)}, ptr {tensor}, align 8")
        if self.new:
            self._copy_new()
        for handle in self.handles:
            out.line(f"call void @{self.name}_end(ptr {out.load('ptr', handle, 8)})")
        with out.when(out.load("i1", self.failed, 1)):
            out.line("store i64 -1, ptr %row, align 8")
        kinds = ", ".join(argument.rsplit(" ", 1)[0] for argument in given)
        declared = [_DECLARED, f"declare void @{self.target}({kinds})", *self.constants]
        return "\n".join([*declared, out.finished(), self._end()])

    def _end(self) -> str:
        """The end of a handle, if there is one."""
        out = Function(f"define internal void @{self.name}_end(ptr %handle)")
        with out.when(out.set("icmp ne ptr %handle, null")):
            out.set(f"call i32 @{DELETE}(ptr %handle)")
        return out.finished()

    def _slot(self, kind: str = "i64") -> str:
        self.at += 1
        return self.out.slot("%row", self.at - 1, kind)

    def _try(self, call: str) -> None:
        """A call of C that says whether it failed."""
        is_bad = self.out.set(f"icmp ne i32 {self.out.set(f'call i32 @{call}')}, 0")
        with self.out.when(is_bad):
            self.out.line(f"store i1 true, ptr {self.failed}, align 1")

    def _goes_on(self) -> str:
        return self.out.set(f"xor i1 {self.out.load('i1', self.failed, 1)}, true")

    def _zeroed(self, memory: str, size: str) -> str:
        self.out.line(f"call void @llvm.memset.p0.i64(ptr {memory}, i8 0, i64 {size}, i1 false)")
        return memory

    def _argument(self, each: Taken) -> list[str]:
        """The arguments of the call that one is."""
        out = self.out
        if each.kind == "zeros":
            self._zeroed(self.places[each.index][0], self._slot())
        if each.kind in ("tensor", "zeros"):
            return [f"ptr {out.load('ptr', self.handles[each.index], 8)}"]
        if each.kind in _NUMBERS:
            kind = "double" if each.kind == "real" else "i64"
            number, shorter = self._slot(kind), _NUMBERS[each.kind]
            return [
                f"{shorter or kind} {out.set(f'trunc i64 {number} to {shorter[:3].strip()}') if shorter else number}"
            ]
        if each.kind == "code":
            return [f"i8 signext {each.index}"]
        if each.kind == "maybe":
            pair = out.memory("[2 x i64]")
            for at in range(2):
                out.line(f"store i64 {self._slot()}, ptr {out.element('i64', pair, str(at))}, align 8")
            return [f"ptr byval([2 x i64]) align 8 {pair}"]
        if each.kind == "text":
            name = f"@{self.name}_text"
            self.constants.append(f'{name} = private constant [{len(each.text)} x i8] c"{each.text}"')
            return [f"i64 {len(each.text)}", f"ptr {name}"]
        if each.kind == "new":
            self.new = out.variable("ptr", "null")
            self._try(f"{EMPTY}(ptr {self.new})")
            return [f"ptr {out.load('ptr', self.new, 8)}"]
        if each.kind == "given":
            return [f"ptr {self._optional(self.handles[each.index])}"]
        assert each.kind in ("nothing", "references"), each.kind
        return [f"ptr {self._zeroed(out.memory('[4 x i64]'), '32')}"]

    def _optional(self, handle: str) -> str:
        """An optional tensor that is there: that of a handle, to which what is left of it is put back afterwards."""
        out, memory = self.out, self._zeroed(self.out.memory("[2 x i64]"), "16")
        tensor = out.load("ptr", handle, 8)
        with out.when(self._goes_on()):
            out.line(f"store i64 {out.load('i64', tensor, 8)}, ptr {memory}, align 8")
            out.line(f"store i8 1, ptr {out.element('i64', memory, '1')}, align 8")
        self.given.append((tensor, memory))
        return memory

    def _copy_new(self) -> None:
        """The elements of the new tensor, to the first one."""
        out, size = self.out, self._slot()
        start, made = out.variable("ptr", "null"), out.load("ptr", self.new, 8)
        with out.when(self._goes_on()):
            self._try(f"{DATA}(ptr {made}, ptr {start})")
        with out.when(self._goes_on()):
            given = f"ptr {self.places[0][0]}, ptr {out.load('ptr', start, 8)}, i64 {size}, i1 false"
            out.line(f"call void @llvm.memcpy.p0.p0.i64({given})")
        out.line(f"call void @{self.name}_end(ptr {made})")
