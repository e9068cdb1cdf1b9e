"""LLVM's text of the operations of formulas.

No flag of fast arithmetic is ever set: an operation is rounded as it stands.

Source: the LLVM language reference.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

BITS = {"float": 32, "double": 64}
_BINARY = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
_COMPARED = {"lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge", "eq": "oeq", "ne": "une"}
_INTRINSICS = {"abs": "fabs", "root": "sqrt", "fma": "fma"}
_INTRINSICS |= {how: how for how in ("floor", "ceil", "trunc", "rint")}

Set = Callable[[str], str]
"""Adds an instruction: the name of its result."""


def declarations(kind: str) -> list[str]:
    """What operations on a type call."""
    return [
        f"declare {kind} @llvm.{name}.f{BITS[kind]}({', '.join([kind] * (3 if operation == 'fma' else 1))})"
        for operation, name in _INTRINSICS.items()
    ]


def operation_text(set_: Set, kind: str, operation: str, parts: Sequence[str]) -> str:
    """The last instruction of an operation on numbers or truth values; those before it are added."""
    listed = ", ".join(parts)
    if operation in _BINARY:
        return f"{_BINARY[operation]} {kind} {listed}"
    if operation in _COMPARED:
        return f"fcmp {_COMPARED[operation]} {kind} {listed}"
    if operation in _INTRINSICS:
        given = ", ".join(f"{kind} {part}" for part in parts)
        return f"call {kind} @llvm.{_INTRINSICS[operation]}.f{BITS[kind]}({given})"
    if operation == "neg":
        return f"fneg {kind} {listed}"
    if operation in ("and", "or"):
        return f"{operation} i1 {listed}"
    if operation == "select":
        return f"select i1 {parts[0]}, {kind} {parts[1]}, {kind} {parts[2]}"
    if operation == "flip":
        return _flipped(set_, kind, *parts)
    assert kind == "float", "the others are of this type only"
    return _OF_BITS[operation](set_, *parts)


def _flipped(set_: Set, kind: str, a: str, b: str) -> str:
    whole = f"i{BITS[kind]}"
    bits, sign = (set_(f"bitcast {kind} {part} to {whole}") for part in (a, b))
    sign = set_(f"and {whole} {sign}, {-(2 ** (BITS[kind] - 1))}")
    return f"bitcast {whole} {set_(f'xor {whole} {bits}, {sign}')} to {kind}"


def _two_to(set_: Set, power: str) -> str:
    is_number = set_(f"fcmp ord float {power}, {power}")
    known = set_(f"select i1 {is_number}, float {power}, float 0.0")
    biased = set_(f"add i32 {set_(f'fptosi float {known} to i32')}, 127")
    return f"bitcast i32 {set_(f'shl i32 {biased}, 23')} to float"


def _exponent(set_: Set, number: str) -> str:
    shifted = set_(f"lshr i32 {set_(f'bitcast float {number} to i32')}, 23")
    return f"sitofp i32 {set_(f'sub i32 {shifted}, 127')} to float"


def _fraction(set_: Set, number: str) -> str:
    bits = set_(f"and i32 {set_(f'bitcast float {number} to i32')}, {2**23 - 1}")
    return f"bitcast i32 {set_(f'or i32 {bits}, {127 << 23}')} to float"


_OF_BITS: dict[str, Callable[..., str]] = {"two to": _two_to, "exponent": _exponent, "fraction": _fraction}


def literal(number: float, element: str) -> str:
    """A constant, rounded to the type, in the form in which LLVM takes floats of either width exactly."""
    if element == "float":
        number = struct.unpack("f", struct.pack("f", number))[0]
    return f"0x{struct.unpack('>Q', struct.pack('>d', number))[0]:016X}"
