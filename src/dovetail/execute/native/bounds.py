"""Checks of whole numbers that say where to read or write: rows that run before all others."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cache

from dovetail.execute.native.llvm_function import Function
from dovetail.execute.native.machine import function_of
from dovetail.execute.native.rows import Address, ReadyRow


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the whole numbers of an operand must be less than. besides: one that is allowed too."""

    operand: str
    high: int
    besides: int = 0


def check_row(bounds: Bounds, address: Address, count: int) -> ReadyRow:
    """The row that fails where one of so many numbers, from an address on, is none of those that are allowed."""
    return ReadyRow(_function(), 1, (address,), more=struct.pack("3q", count, bounds.high, bounds.besides))


@cache
def _function() -> int:
    """The address of the function of rows that fail where a whole number is none of those that are allowed.

    slots: 1, pointer, how many there are, what they must be less than, a number that is allowed besides
    """
    name = "check_bounds"
    out = Function(f"define void @{name}(ptr %row, i64 %from, i64 %to)")
    start, count, high, besides = out.slot("%row", 1, "ptr"), *(out.slot("%row", at) for at in (2, 3, 4))
    with out.loop("0", count) as at:
        number = out.load("i64", out.element("i64", start, at), 8)
        is_inside = out.set(f"icmp ult i64 {number}, {high}")  # negative ones are large without a sign
        is_allowed = out.set(f"or i1 {is_inside}, {out.set(f'icmp eq i64 {number}, {besides}')}")
        with out.when(out.set(f"xor i1 {is_allowed}, true")):
            out.line("store i64 -1, ptr %row, align 8")
    found = function_of(out.finished(), name, ())
    assert found is not None, "it calls nothing"
    return found
