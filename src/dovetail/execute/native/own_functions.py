"""Functions of float32 as formulas: polynomials within a loop, the same wherever an element stands, instead of calls of
MKL, Sleef and C's library.

Source: Eigen's rational approximations of the error function and of the hyperbolic tangent; Moshier, Cephes (`expf`,
`logf`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from dovetail.execute.native.formula import (
    Formula,
    absolute,
    compared,
    constant,
    exponent,
    flipped,
    fma,
    fraction,
    rounded,
    select,
    two_to,
)
from dovetail.execute.native.vector_activations import (
    ERF_ABOVE,
    ERF_BELOW,
    ERF_END,
    EXP,
    LN2,
    LN2_REST,
    LOG2_E,
    TANH_ABOVE,
    TANH_BELOW,
    TANH_END,
)

_LEAST_EXP, _MOST_EXP = -87.3, 89.0  # to the least normal number, and to infinity
_LEAST_EXPM1 = -20.0  # -1 from here on
_ZERO, _ONE = constant(0.0), constant(1.0)


def _clamped(x: Formula, least: float, most: float) -> Formula:
    """NaN stays NaN."""
    low, high = constant(least), constant(most)
    raised = select(compared("lt", x, low), low, x)
    return select(compared("gt", raised, high), high, raised)


def _polynomial(factors: Sequence[float], x: Formula) -> Formula:
    made = constant(factors[0])
    for factor in factors[1:]:
        made = fma(made, x, constant(factor))
    return made


def _parts(x: Formula) -> tuple[Formula, Formula]:
    """A power of two, and what is added to 1 to be multiplied by it: together, the exponential of x."""
    n = rounded("rint", x * constant(LOG2_E))
    rest = fma(n, constant(-LN2_REST), fma(n, constant(-LN2), x))
    return n, fma(_polynomial(EXP, rest), rest * rest, rest)


def exp(x: Formula) -> Formula:
    """The power is put in by two factors, so that results next to infinity are right. What is not normal is 0: it takes
    processors a hundred times as long.
    """
    is_zero = compared("lt", x, constant(_LEAST_EXP))
    n, grown = _parts(_clamped(x, _LEAST_EXP, _MOST_EXP))
    half = rounded("floor", n * constant(0.5))
    return select(is_zero, _ZERO, (grown + _ONE) * two_to(half) * two_to(n - half))


def exp_of_negative(x: Formula) -> Formula:
    """The same for numbers that are not above 0."""
    is_zero = compared("lt", x, constant(_LEAST_EXP))
    n, grown = _parts(select(is_zero, _ZERO, x))
    return select(is_zero, _ZERO, (grown + _ONE) * two_to(n))


def expm1(x: Formula) -> Formula:
    """1 is taken away from the power of two, of which nothing is lost where the result is small."""
    n, grown = _parts(_clamped(x, _LEAST_EXPM1, _MOST_EXP))
    half = rounded("floor", n * constant(0.5))
    a, b = two_to(half), two_to(n - half)
    found = fma(grown, a, a - _ONE / b) * b
    return select(compared("eq", x, _ZERO), x, found)


def _ratio(x: Formula, end: float, above: Sequence[float], below: Sequence[float]) -> Formula:
    """It is 1 exactly from the end on: what it is subtracted from may be multiplied by a large number."""
    square = x * x
    near = x * _polynomial(above, square) / _polynomial(below, square)
    return select(compared("ge", absolute(x), constant(end)), flipped(_ONE, x), near)


def tanh(x: Formula) -> Formula:
    return _ratio(x, TANH_END, TANH_ABOVE, TANH_BELOW)


def erf(x: Formula) -> Formula:
    return _ratio(x, ERF_END, ERF_ABOVE, ERF_BELOW)


_LOG = (
    *(7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1),
    *(-1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1),
)
_LEAST_NORMAL, _RAISED = 2.0**-126, 25  # what is less is multiplied by that power of two


def log(x: Formula) -> Formula:
    """Of a number near 1, the sum of a polynomial; of others, of what is left of them, and the power of two."""
    is_tiny = compared("lt", x, constant(_LEAST_NORMAL))
    scaled = select(is_tiny, x * constant(2.0**_RAISED), x)
    power = exponent(scaled) - select(is_tiny, constant(float(_RAISED)), _ZERO)
    rest = fraction(scaled)
    is_over = compared("gt", rest, constant(math.sqrt(2.0)))
    power = select(is_over, power + _ONE, power)
    rest = select(is_over, rest * constant(0.5), rest) - _ONE
    square = rest * rest
    small = fma(power, constant(LN2_REST), _polynomial(_LOG, rest) * rest * square)
    found = fma(power, constant(LN2), rest + fma(constant(-0.5), square, small))
    found = select(compared("eq", x, constant(math.inf)), x, found)
    found = select(compared("eq", x, _ZERO), constant(-math.inf), found)
    return select(compared("ge", x, _ZERO), found, constant(math.nan))


def log1p(x: Formula) -> Formula:
    """What 1 + x loses of x is made up for by a factor: the logarithm is nearly linear there (Kahan)."""
    u = _ONE + x
    found = log(u) * (x / (u - _ONE))
    found = select(compared("eq", u, _ONE), x, found)
    return select(compared("eq", u, constant(math.inf)), u, found)
