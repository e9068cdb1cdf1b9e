"""LLVM's text of the row that computes numbers, as Python does it: a list of steps on numbers in slots.

    1, pointers, numbers that are given, number of steps, number of registers, then for each step its operation, where
    its result goes and where its operands are, then the registers, then how many numbers are handed on, and for each
    where to, from where, and two that it may not lie between

Where Python would raise an error, or a number handed on is finite and too large for float32, the row fails.

Source: Python's `float_pow` (Objects/floatobject.c), which calls libm's `pow`.
"""

from __future__ import annotations

import math
import operator
import struct
from functools import cache

import torch

from dovetail.execute.native.llvm_function import Function
from dovetail.execute.native.machine import function_of

READ_FLOAT, READ_DOUBLE, ADD, SUB, MUL, DIV, NEG, POW, SQRT = range(9)
"""Steps. The first two read what is at an address."""

STEPS: dict[object, int] = {
    operator.add: ADD,
    operator.sub: SUB,
    operator.mul: MUL,
    operator.truediv: DIV,
    operator.neg: NEG,
    operator.pow: POW,
    math.sqrt: SQRT,
}
"""By the functions of numbers that they are."""

_MOST = torch.finfo(torch.float32).max  # what kernels take for a number


@cache
def numbers_function() -> int | None:
    """The address of the function of such rows; None where there is no `pow`."""
    out = Function("define void @compute_numbers(ptr %row, i64 %from, i64 %to)")
    given = out.set("add i64 %to, -1")  # a row has one item more than numbers that are given
    behind = out.set(f"add i64 {out.slot('%row', -2)}, {given}")  # slots of pointers and of these numbers
    head = out.element("i64", "%row", out.set(f"add i64 {behind}, 1"))
    count, registers = out.slot(head, 0), out.slot(head, 1)
    steps = out.element("i64", head, "2")
    failed = out.variable("i1", "false", 1)
    with out.loop("0", count) as at:
        _step(out, out.element("[4 x i64]", steps, at), failed)
    end = out.set(f"add i64 {out.set(f'mul i64 {count}, 4')}, {registers}")
    puts = out.element("i64", steps, end)
    with out.loop("0", out.slot(puts, 0)) as at:
        put = out.element("[4 x i64]", out.element("i64", puts, "1"), at)
        number = out.load("double", out.element("i64", "%row", out.slot(put, 1)), 8)
        size = out.set(f"call double @llvm.fabs.f64(double {number})")
        is_too_large = out.set(f"and i1 {_compared(out, 'ogt', size, _number(_MOST))}, {_is_finite(out, number)}")
        _fail_unless(out, out.set(f"xor i1 {is_too_large}, true"), failed)
        above = _compared(out, "oge", number, out.slot(put, 2, "double"))
        below = _compared(out, "ole", number, out.slot(put, 3, "double"))
        is_near = out.set(f"and i1 {above}, {below}")
        _fail_unless(out, out.set(f"xor i1 {is_near}, true"), failed)
        out.line(f"store double {number}, ptr {out.element('i64', '%row', out.slot(put, 0))}, align 8")
    with out.when(out.load("i1", failed, 1)):
        out.line("store i64 -1, ptr %row, align 8")
    return function_of(_DECLARED + out.finished(), "compute_numbers", ("pow",))


def _step(out: Function, step: str, failed: str) -> None:
    """One step. failed: a variable that is set where Python would raise an error."""
    operation, made = out.slot(step, 0), out.element("i64", "%row", out.slot(step, 1))
    places = [out.element("i64", "%row", out.slot(step, at)) for at in (2, 3)]
    for kind, reads in ((READ_FLOAT, "float"), (READ_DOUBLE, "double")):
        with out.when(out.set(f"icmp eq i64 {operation}, {kind}")):
            number = out.load(reads, out.load("ptr", places[0], 8))
            number = out.set(f"fpext float {number} to double") if reads == "float" else number
            out.line(f"store double {number}, ptr {made}, align 8")
    is_computed = out.set(f"icmp sgt i64 {operation}, {READ_DOUBLE}")
    with out.when(is_computed):
        x, y = (out.load("double", place, 8) for place in places)
        for kind, text in (
            (ADD, f"fadd double {x}, {y}"),
            (SUB, f"fsub double {x}, {y}"),
            (MUL, f"fmul double {x}, {y}"),
            (DIV, f"fdiv double {x}, {y}"),
            (NEG, f"fneg double {x}"),
            (POW, f"call double @pow(double {x}, double {y})"),
            (SQRT, f"call double @llvm.sqrt.f64(double {x})"),
        ):
            with out.when(out.set(f"icmp eq i64 {operation}, {kind}")):
                if kind == DIV:
                    _fail_unless(out, _compared(out, "une", y, "0.0"), failed)
                if kind == POW:  # else it can be an error, or a complex number
                    is_inverse = out.set(f"and i1 {_compared(out, 'oeq', x, '0.0')}, {_compared(out, 'olt', y, '0.0')}")
                    _fail_unless(out, out.set(f"xor i1 {is_inverse}, true"), failed)
                if kind in (POW, SQRT):
                    _fail_unless(out, _compared(out, "uge", x, "0.0"), failed)
                found = out.set(text)
                if kind == POW:  # too large a number is an error where it is made of others
                    is_made = out.set(f"and i1 {_is_finite(out, x)}, {_is_finite(out, y)}")
                    is_finite = _is_finite(out, found)
                    _fail_unless(out, out.set(f"or i1 {is_finite}, {out.set(f'xor i1 {is_made}, true')}"), failed)
                out.line(f"store double {found}, ptr {made}, align 8")


def _compared(out: Function, how: str, x: str, y: str) -> str:
    return out.set(f"fcmp {how} double {x}, {y}")


def _is_finite(out: Function, x: str) -> str:
    """Whether a number is no infinity and no NaN."""
    return _compared(out, "olt", out.set(f"call double @llvm.fabs.f64(double {x})"), "0x7FF0000000000000")


def _fail_unless(out: Function, holds: str, failed: str) -> None:
    with out.when(out.set(f"xor i1 {holds}, true")):
        out.line(f"store i1 true, ptr {failed}, align 1")


def _number(number: float) -> str:
    """A double as LLVM's text has it."""
    return f"0x{struct.pack('>d', number).hex().upper()}"


_DECLARED = """declare double @pow(double, double)
declare double @llvm.fabs.f64(double)
declare double @llvm.sqrt.f64(double)
"""
