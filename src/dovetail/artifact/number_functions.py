"""The functions of numbers that a file can name, each with its number of arguments.

Nothing else of `operator`, `math`, `torch` or Python can be named: no access to attributes or items, no calls, no work
on texts or lists. What could run without end on large numbers is replaced by `ops.bounded` when the program runs.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch

from dovetail.artifact.limits import check_bits, power_bits

_ONE, _TWO, _THREE = (1, 1), (2, 2), (3, 3)
_NAMES: tuple[tuple[Any, str, tuple[int, int], str], ...] = (
    (operator, "operator", _ONE, "abs index inv invert neg not_ pos truth"),
    (operator, "operator", _TWO, "add and_ eq floordiv ge gt le lshift lt mod mul ne or_ pow rshift sub truediv xor"),
    (math, "math", _ONE, "acos acosh asin asinh atan atanh cbrt ceil cos cosh degrees erf erfc exp exp2 expm1"),
    (math, "math", _ONE, "fabs factorial floor gamma isfinite isinf isnan isqrt lgamma log10 log1p log2 radians"),
    (math, "math", _ONE, "sin sinh sqrt tan tanh trunc ulp"),
    (math, "math", _TWO, "atan2 comb copysign fmod gcd isclose lcm ldexp nextafter pow remainder"),
    (math, "math", (1, 2), "log perm"),
    (math, "math", _THREE, "fma"),
    (torch, "torch", _ONE, "sym_float sym_int sym_not _sym_acos _sym_asin _sym_atan _sym_cos _sym_cosh _sym_log2"),
    (torch, "torch", _ONE, "_sym_sin _sym_sinh _sym_sqrt _sym_tan _sym_tanh"),
    (torch, "torch", _TWO, "sym_max sym_min"),
    (torch, "torch", _THREE, "sym_ite"),
)  # fmt: skip
_BUILT_IN: Mapping[str, tuple[Callable[..., Any], tuple[int, int]]] = {
    **{function.__name__: (function, _ONE) for function in (abs, bool, float, int)},
    **{function.__name__: (function, (2, 255)) for function in (max, min)},
    "pow": (pow, _TWO),
    "round": (round, (1, 2)),
}
# By the text that `number_function_text` gives: the function, and the least and the most that it takes.
NUMBER_FUNCTIONS: Mapping[str, tuple[Callable[..., Any], tuple[int, int]]] = {
    **{
        f"{prefix}.{name}": (getattr(space, name), counts)
        for space, prefix, counts, names in _NAMES
        for name in names.split()
        if hasattr(space, name)
    },
    **_BUILT_IN,
}
_POWERS = frozenset({"operator.pow", "pow"})
# Their results may be long integers; `ops.bounded` looks at their operands when they run.
_CHECKED_AS_THEY_RUN = frozenset({"operator.lshift", "math.factorial", "math.comb", "math.perm"})
_PRODUCTS = frozenset({"operator.mul", "math.lcm"})
_SUMS = frozenset({"operator.add", "operator.sub"})
_OF_FRACTIONS = frozenset({"int", "round", "math.ceil", "math.floor", "math.trunc", "torch.sym_int"})
_MAX_DIGITS = 308
_LONG = 1_100  # bits of an integer that is made of a float64, or that `ops.bounded` lets through


def result_bits(text: str, operands: tuple[object, ...], bits: tuple[int, ...]) -> int:
    """At most how many bits the result has. bits: of each operand.

    Raises: ValueError for other operands than the function takes, and where the result may be too long.
    """
    least, most = NUMBER_FUNCTIONS[text][1]
    if not least <= len(operands) <= most:
        raise ValueError(f"{text} is called with {len(operands)} numbers")
    if text == "round" and len(operands) == 2:
        digits = operands[1]
        if type(digits) is not int or abs(digits) > _MAX_DIGITS:
            raise ValueError(f"round is asked for {digits!r} digits")
    if text in _POWERS and isinstance(operands[1], int | float):
        return check_bits(power_bits(bits[0], operands[1]), f"a result of {text}")
    if text in _POWERS or text in _CHECKED_AS_THEY_RUN or text in _OF_FRACTIONS:
        return max((*bits, _LONG))
    if text in _PRODUCTS:
        return check_bits(sum(bits), f"a result of {text}")
    return check_bits(max(bits) + (1 if text in _SUMS else 0), f"a result of {text}")
