"""LLVM's text of the rows that take memory and let it go.

    take:   1, a handle, dimensions, code of the dtype, sizes, strides; it defines an address
    let go: 1, where the row is that took it
    copy:   1, pointer, bytes, room for them: eight at most; it defines the address of the room

Each piece of memory is a tensor of torch's own, so torch's allocator sees it as it sees eager's. What rows are told of
addresses: see `link`.

Source: torch's `aoti_torch/c/shim.h`.
"""

from __future__ import annotations

from functools import cache

from dovetail.execute.native.llvm_function import Function
from dovetail.execute.native.machine import function_of
from dovetail.torch_compat.native_tensors import DATA, DELETE, MAKE

HANDLE = 1
"""The slot of a row that takes memory in which its handle is."""


@cache
def take_function() -> int:
    """The address of the function of rows that take memory."""
    out = Function("define void @take_memory(ptr %row, i64 %from, i64 %to)")
    dims, sizes = out.slot("%row", 2), out.element("i64", "%row", "4")
    strides = out.element("i64", sizes, dims)
    code, handle = out.set(f"trunc i64 {out.slot('%row', 3)} to i32"), out.element("i64", "%row", str(HANDLE))
    made = f"call i32 @{MAKE}(i64 {dims}, ptr {sizes}, ptr {strides}, i32 {code}, i32 0, i32 0, ptr {handle})"
    start = out.variable("ptr", "null")
    failed = out.set(f"icmp ne i32 {out.set(made)}, 0")
    with out.when(failed):
        out.line(f"store i64 0, ptr {handle}, align 8")
        out.line("store i64 -1, ptr %row, align 8")
    with out.when(out.set(f"xor i1 {failed}, true")):
        out.set(f"call i32 @{DATA}(ptr {out.load('ptr', handle, 8)}, ptr {start})")
        _define(out, out.load("ptr", start, 8), out.element("i64", strides, dims))
    declared = f"declare i32 @{MAKE}(i64, ptr, ptr, i32, i32, i32, ptr)\ndeclare i32 @{DATA}(ptr, ptr)\n"
    return _found(function_of(declared + out.finished(), "take_memory", (MAKE, DATA)))


@cache
def copy_function() -> int:
    """The address of the function of rows that copy a number into the table."""
    out = Function("define void @copy_number(ptr %row, i64 %from, i64 %to)")
    room = out.element("i64", "%row", "3")
    given = f"ptr {room}, ptr {out.slot('%row', 1, 'ptr')}, i64 {out.slot('%row', 2)}, i1 false"
    out.line(f"call void @llvm.memcpy.p0.p0.i64({given})")
    _define(out, room, out.element("i64", "%row", "4"))
    text = f"declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)\n{out.finished()}"
    return _found(function_of(text, "copy_number", ()))


def _define(out: Function, start: str, places: str) -> None:
    """Write an address into rows: see `link`. places: where it says which."""
    with out.loop("0", out.slot(places, 0)) as at:
        pair = out.element("[2 x i64]", out.element("i64", places, "1"), at)
        place = out.element("i64", "%row", out.slot(pair, 0))
        out.line(f"store ptr {out.element('i8', start, out.slot(pair, 1))}, ptr {place}, align 8")


@cache
def let_go_function() -> int:
    """The address of the function of rows that let memory go."""
    out = Function("define void @let_memory_go(ptr %row, i64 %from, i64 %to)")
    handle = out.element("i64", out.element("i64", "%row", out.slot("%row", 1)), str(HANDLE))
    out.set(f"call i32 @{DELETE}(ptr {out.load('ptr', handle, 8)})")
    out.line(f"store i64 0, ptr {handle}, align 8")
    return _found(function_of(f"declare i32 @{DELETE}(ptr)\n{out.finished()}", "let_memory_go", (DELETE,)))


def _found(address: int | None) -> int:
    """An address of what `machine.unavailable` has looked for."""
    assert address is not None
    return address
