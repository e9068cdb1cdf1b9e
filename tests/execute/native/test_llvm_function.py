"""Functions of LLVM's text: loops, conditions and variables do what they say."""

from __future__ import annotations

import struct

import pytest
import torch

from dovetail.execute.native.llvm_function import Function
from dovetail.execute.native.machine import driver, function_of
from dovetail.execute.native.rows import table_row

pytest.importorskip("llvmlite")


def _text() -> str:
    """For each number before `count`: the sum of the even numbers up to it, nothing from `last` on."""
    out = Function("define void @evens(ptr %row, i64 %from, i64 %to)")
    into, count, last = out.slot("%row", 1, "ptr"), out.slot("%row", 2), out.slot("%row", 3)
    total = out.variable("i64", "0")
    with out.loop("0", count) as i:
        out.leave(out.set(f"icmp sge i64 {i}, {last}"), "void")
        with out.when(out.set(f"icmp eq i64 {out.set(f'and i64 {i}, 1')}, 0")):
            more = out.set(f"add i64 {out.load('i64', total, 8)}, {i}")
            out.line(f"store i64 {more}, ptr {total}, align 8")
        with out.loop(i, out.set(f"add i64 {i}, 1")) as same:
            out.line(f"store i64 {out.load('i64', total, 8)}, ptr {out.element('i64', into, same)}, align 8")
    return out.finished()


@pytest.mark.parametrize(("count", "last", "found"), [(0, 9, []), (5, 9, [0, 0, 2, 2, 6]), (6, 3, [0, 0, 2])])
def test_loops_and_conditions(count: int, last: int, found: list[int]) -> None:
    function = function_of(_text(), "evens", ())
    assert function is not None
    made = torch.full((6,), -1)
    table = table_row(function, 1, [made.data_ptr()], (), struct.pack("2q", count, last))
    assert driver()(table, 1, 1, 0) == 0
    assert made.tolist() == found + [-1] * (6 - len(found))
