"""LLVM's text of the rows of products: a call of BLAS, after copies of what is added, and of what BLAS cannot read.

    slots: 1, pointers (result, first, second, start, memory of each copy), turned (two), sizes (three), leading
    dimensions (three), alpha, beta; with a start: the result's sizes, the start's strides; of each operand that is
    copied: its sizes and strides

BLAS takes the addresses of its numbers, so it is given those of the slots.

Source: the reference BLAS (`sgemm`, `dgemm`).
"""

from __future__ import annotations

from functools import cache

from dovetail.execute.native.llvm_function import Function
from dovetail.execute.native.machine import function_of

SYMBOLS = {"float": "sgemm_", "double": "dgemm_"}
_BYTES = {"float": 4, "double": 8}


@cache
def product_function(element: str, has_start: bool, copied: tuple[bool, bool]) -> int | None:
    """The address of the function of such rows; None where this torch has no BLAS to call.

    copied: by operand, in the order of the call.
    """
    copies = "".join(f"_{at}" for at, is_copied in enumerate(copied) if is_copied)
    name = f"product_{element}{'_with_start' if has_start else ''}{copies}"
    return function_of(_text(name, element, has_start, copied), name, (SYMBOLS[element],))


def _text(name: str, element: str, has_start: bool, copied: tuple[bool, bool]) -> str:
    pointers = 3 + has_start + sum(copied)
    out = Function(f"define void @{name}(ptr %row, i64 %from, i64 %to)")
    result, *operands = (out.slot("%row", at, "ptr") for at in (1, 2, 3))
    told = [out.element("i64", "%row", str(pointers + 1 + at)) for at in range(10)]
    numbers = iter(range(pointers + 11, pointers + 11 + 4 * (has_start + sum(copied))))

    def copy(into: str, source: str) -> None:
        given = ", ".join(f"i64 {out.slot('%row', next(numbers))}" for _ in range(4))
        out.line(f"call void @{name}_copy(ptr {into}, ptr {source}, {given})")

    if has_start:
        copy(result, out.slot("%row", 4, "ptr"))
    rooms = iter(range(4 + has_start, pointers + 1))
    for at in (at for at, is_copied in enumerate(copied) if is_copied):
        room = out.slot("%row", next(rooms), "ptr")
        copy(room, operands[at])
        operands[at] = room
    turned, sizes, leading, (alpha, beta) = told[:2], told[2:5], told[5:8], told[8:]
    arguments = [*turned, *sizes, alpha, operands[0], leading[0], operands[1], leading[1], beta, result, leading[2]]
    out.line(f"call void @{SYMBOLS[element]}({', '.join(f'ptr {each}' for each in arguments)})")
    declared = f"declare void @{SYMBOLS[element]}({', '.join(['ptr'] * 13)})\n"
    return declared + out.finished() + (_copy_text(name, element) if has_start or any(copied) else "")


def _copy_text(name: str, element: str) -> str:
    """A copy of a matrix of any strides into one whose rows lie one after the other."""
    given = "ptr %into, ptr %start, i64 %rows, i64 %columns, i64 %down, i64 %across"
    out = Function(f"define internal void @{name}_copy({given})")
    size = out.set(f"mul i64 %columns, {_BYTES[element]}")
    is_whole = out.set("icmp eq i64 %across, 1")
    is_apart = out.set(f"xor i1 {is_whole}, true")
    with out.loop("0", "%rows") as row:
        into = out.element(element, "%into", out.set(f"mul i64 {row}, %columns"))
        start = out.element(element, "%start", out.set(f"mul i64 {row}, %down"))
        with out.when(is_whole):
            out.line(f"call void @llvm.memcpy.p0.p0.i64(ptr {into}, ptr {start}, i64 {size}, i1 false)")
        with out.when(is_apart), out.loop("0", "%columns") as column:
            value = out.load(element, out.element(element, start, out.set(f"mul i64 {column}, %across")))
            out.line(f"store {element} {value}, ptr {out.element(element, into, column)}")
    return "declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)\n" + out.finished()
