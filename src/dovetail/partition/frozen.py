"""Operands as something that can be compared, with numbers in the place of values: what both checkers look up by."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from dovetail.ir.program import Operand, Value


def frozen(operand: Operand, numbers: Mapping[Value, int]) -> Hashable:
    """The operand with the number of each value in its place, as something that can be compared."""
    if isinstance(operand, Value):
        return ("value", numbers.get(operand, -1))
    if isinstance(operand, tuple | list):
        return (type(operand).__name__, *[frozen(item, numbers) for item in operand])
    if isinstance(operand, float):
        return ("float", repr(operand))
    return (type(operand).__name__, operand) if isinstance(operand, Hashable) else ("object", id(operand))
