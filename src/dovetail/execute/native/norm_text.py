"""LLVM's text of the rows of norms: the root of the sum of squares, added in the order of torch's kernel.

    slots: 1, pointers (result, operand), rows, columns; the operand is a matrix of rows, one after the other

A vector of 32 bytes has the sums of its lanes, which are added one after the other; then come the elements that are
left. Compilers contract some of these: squares of `group` elements at a time are rounded before they are added, and
those of the rest are not.

Source: torch's `ReduceOpsKernel.cpp` (`norm_two_reduce_step`).
"""

from __future__ import annotations

from functools import cache

from dovetail.execute.native.llvm_function import Function
from dovetail.execute.native.machine import AS_WRITTEN, function_of

_BYTES = {"float": 4, "double": 8}
_VECTOR = 32  # bytes


@cache
def norm_function(element: str, group: int) -> int | None:
    """The address of the function of such rows. group: 0 where all squares are rounded."""
    name = f"norm_{element}_{group}"
    return function_of(_text(name, element, group), name, ())


def _text(name: str, element: str, group: int) -> str:
    lanes, suffix = _VECTOR // _BYTES[element], {"float": "f32", "double": "f64"}[element]
    vector = f"<{lanes} x {element}>"
    out = Function(f"define void @{name}(ptr %row, i64 %from, i64 %to)")
    into, operand = out.slot("%row", 1, "ptr"), out.slot("%row", 2, "ptr")
    rows, columns = out.slot("%row", 3), out.slot("%row", 4)
    sums, total = out.memory(vector, _VECTOR), out.memory(element)
    rest = out.set(f"srem i64 {columns}, {lanes}")
    whole = out.set(f"sub i64 {columns}, {rest}")
    left = out.set(f"srem i64 {rest}, {group}") if group else "0"
    rounded = out.set(f"sub i64 {columns}, {left}")

    def add(kind: str, to: str, start: str, at: str) -> None:
        value = out.load(kind, out.element(element, start, at))
        made = out.set(f"fadd {kind} {out.load(kind, to)}, {out.set(f'fmul {kind} {value}, {value}')}")
        out.line(f"store {kind} {made}, ptr {to}, align 4")

    with out.loop("0", rows) as row:
        start = out.element(element, operand, out.mul(row, columns))
        out.line(f"store {vector} zeroinitializer, ptr {sums}, align 4")
        with out.loop("0", whole, str(lanes)) as at:
            add(vector, sums, start, at)
        made, sum_ = out.load(vector, sums), ""
        for lane in range(lanes):
            one = out.set(f"extractelement {vector} {made}, i64 {lane}")
            sum_ = out.set(f"fadd {element} {sum_}, {one}") if lane else one
        out.line(f"store {element} {sum_}, ptr {total}, align 4")
        with out.loop(whole, rounded) as at:
            add(element, total, start, at)
        with out.loop(rounded, columns) as at:
            value = out.load(element, out.element(element, start, at))
            given = f"{element} {value}, {element} {value}, {element} {out.load(element, total)}"
            out.line(f"store {element} {out.set(f'call {element} @llvm.fma.{suffix}({given})')}, ptr {total}, align 4")
        root = out.set(f"call {element} @llvm.sqrt.{suffix}({element} {out.load(element, total)})")
        out.line(f"store {element} {root}, ptr {out.element(element, into, row)}, align 4")
    declared = [f"declare {element} @llvm.fma.{suffix}({element}, {element}, {element})"]
    declared.append(f"declare {element} @llvm.sqrt.{suffix}({element})")
    return "\n".join([AS_WRITTEN, *declared, out.finished()])
