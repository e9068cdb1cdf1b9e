"""Limits on the contents of a file. `SECURITY.md` lists these; honest files stay far below them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dovetail.ir.sizes import OPAQUE, Scalar, SizeExpr

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_NODES = 1_000_000
MAX_VALUES = 4_000_000
MAX_OPERANDS = 65_536  # of a node, lists flattened
MAX_RANK = 64
MAX_SUBGRAPH_DEPTH = 8  # subgraphs in subgraphs
MAX_TEXT = 4_000  # of an operand
MAX_INTEGER = 1 << 63
MAX_JSON_BYTES = 1 << 30
# No integer that a program computes from integers of 64 bits may have more bits.
MAX_BITS = 65_536

_WORD = 64
_FRACTION = 1_100  # an integer made of a float64 has fewer bits
_FRACTIONS = frozenset({"truediv", "float", *OPAQUE})
_ANSWERS = frozenset({"eq", "ne", "lt", "le", "gt", "ge", "not"})


def check_count(count: int, most: int, what: str) -> None:
    """Raise ValueError where there are too many of something."""
    if count > most:
        raise ValueError(f"it has {count} {what}, and at most {most} are read")


def check_integer(number: int) -> None:
    """Raise ValueError for an integer of more than 64 bits."""
    if not -MAX_INTEGER <= number < MAX_INTEGER:
        raise ValueError(f"an integer of {number.bit_length()} bits is too large for a program")


def check_bits(bits: int, what: str) -> int:
    """The number of bits. Raises: ValueError where a number may become too long."""
    if bits > MAX_BITS:
        raise ValueError(f"{what} may have {bits} bits, and {MAX_BITS} is the maximum")
    return bits


def bits_of(size: Scalar, known: Mapping[str, int] | None = None) -> int:
    """At most how many bits a size has as an integer, where symbols have 64. known: symbols that may have more.

    Raises: ValueError where it may have too many, or where a power has an exponent that is not a small number.
    """
    if not isinstance(size, SizeExpr):
        return _FRACTION if isinstance(size, float) else max(1, size.bit_length())
    if size.op == "symbol":
        return (known or {}).get(str(size.args[0]), _WORD)
    parts = [bits_of(part, known) for part in size.args if not isinstance(part, str)]
    if size.op == "pow" and any(map(_is_fraction, size.args)):
        return _FRACTION
    if size.op == "pow":
        return check_bits(power_bits(parts[0], size.args[1]), f"the power {size}")
    if size.op in _ANSWERS:
        return 1
    if size.op in _FRACTIONS:
        return _FRACTION
    total = sum(parts) if size.op == "mul" else max(parts) + (len(parts) if size.op == "add" else 1)
    return check_bits(total, "a size")


def _is_fraction(part: object) -> bool:
    """Whether a number is a float, whatever its symbols are."""
    return isinstance(part, float) or (isinstance(part, SizeExpr) and part.op in _FRACTIONS)


def power_bits(base: int, exponent: object) -> int:
    """At most how many bits a power has. base: bits of it. Raises: ValueError for an exponent that may be large."""
    if isinstance(exponent, float):
        return _FRACTION
    if isinstance(exponent, SizeExpr) or not isinstance(exponent, int):
        raise ValueError("a power has an exponent that is known only at run time")
    return _FRACTION if exponent < 0 else max(1, base * exponent)
