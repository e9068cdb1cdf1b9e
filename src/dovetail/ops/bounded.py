"""Functions of numbers that could run without end, with a bound on their results."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

from dovetail.errors import RefusedOperands

_MAX_BITS = 64  # of a result: what torch takes as a size


def _refuse(what: str, *numbers: object) -> None:
    raise RefusedOperands(operator=what, reason=f"{', '.join(map(str, numbers))} give a number of more than 64 bits")


def _bits(number: Any) -> int:
    return int(number).bit_length() if isinstance(number, int) else 0


def bounded_pow(base: Any, exponent: Any) -> Any:
    """`base ** exponent`. Raises: RefusedOperands for an integer of more than 64 bits."""
    are_integers = isinstance(base, int) and isinstance(exponent, int)
    if are_integers and abs(base) > 1 and exponent > 0 and (_bits(base) - 1 or 1) * exponent > _MAX_BITS:
        _refuse("pow", f"numbers of {_bits(base)} and {_bits(exponent)} bits")
    return base**exponent


def bounded_shift(number: Any, by: Any) -> Any:
    """`number << by`. Raises: RefusedOperands for an integer of more than 64 bits."""
    if number and isinstance(by, int) and by > _MAX_BITS:
        _refuse("lshift", f"numbers of {_bits(number)} and {_bits(by)} bits")
    return number << by


def bounded_factorial(number: Any) -> int:
    """`math.factorial(number)`. Raises: RefusedOperands for an integer of more than 64 bits."""
    if number > 20:
        _refuse("factorial", f"a number of {_bits(number)} bits")
    return math.factorial(number)


def bounded_comb(of: Any, taken: Any) -> int:
    """`math.comb(of, taken)`. Raises: RefusedOperands for numbers whose result could be long."""
    if of > 1024 and min(taken, of - taken) > 6:
        _refuse("comb", f"numbers of {_bits(of)} and {_bits(taken)} bits")
    return math.comb(of, taken)


def bounded_perm(of: Any, taken: Any = None) -> int:
    """`math.perm(of, taken)`. Raises: RefusedOperands for numbers whose result could be long."""
    if of > 128 and (taken is None or taken > 6):
        _refuse("perm", f"numbers of {_bits(of)} and {_bits(taken)} bits")
    return math.perm(of, taken)


BOUNDED: Mapping[Callable[..., Any], Callable[..., Any]] = {
    operator.pow: bounded_pow,
    pow: bounded_pow,
    operator.lshift: bounded_shift,
    math.factorial: bounded_factorial,
    math.comb: bounded_comb,
    math.perm: bounded_perm,
}
