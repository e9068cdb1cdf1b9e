"""Integer polynomials over size symbols, just enough to compare addresses.

A size expression becomes a sum of monomials with integer coefficients; what is not a sum or product (a floor division,
say) stays whole as an *atom*, and two equal ones cancel. Symbols stand for sizes, so they are known to be >= 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from math import gcd
from typing import TypeAlias

from dovetail.ir.sizes import Scalar, Size, SizeExpr, product

# The factors of a monomial, sorted by their text; empty for the constant.
Monomial: TypeAlias = tuple[SizeExpr, ...]

_MAX_POWER = 4


@dataclass(frozen=True, slots=True)
class Polynomial:
    """coefficients: monomial -> its number, never 0."""

    coefficients: Mapping[Monomial, int]

    def __add__(self, other: Polynomial | int) -> Polynomial:
        total = dict(self.coefficients)
        for monomial, number in _as_polynomial(other).coefficients.items():
            total[monomial] = total.get(monomial, 0) + number
        return Polynomial({m: n for m, n in total.items() if n})

    def __mul__(self, other: Polynomial | int) -> Polynomial:
        total: dict[Monomial, int] = {}
        for left, a in self.coefficients.items():
            for right, b in _as_polynomial(other).coefficients.items():
                monomial = tuple(sorted(left + right, key=str))
                total[monomial] = total.get(monomial, 0) + a * b
        return Polynomial({m: n for m, n in total.items() if n})

    def __sub__(self, other: Polynomial | int) -> Polynomial:
        return self + _as_polynomial(other) * -1

    @property
    def constant(self) -> int | None:
        """The number that this is; None when a symbol occurs."""
        if not self.coefficients:
            return 0
        return self.coefficients.get(()) if len(self.coefficients) == 1 else None

    def is_nonnegative(self) -> bool:
        """Whether no term can be below 0. False means only that this is not obvious."""
        return all(number * _sign(monomial) > 0 for monomial, number in self.coefficients.items())

    def divided_by(self, divisor: Polynomial) -> tuple[Polynomial, Polynomial]:
        """(quotient, rest) with self = quotient * divisor + rest, for all values; the rest is 0 if that can be.

        Integer coefficients throughout: a term that the leading term of the divisor does not divide joins the rest.
        """
        quotient, rest, left = Polynomial({}), Polynomial({}), self
        lead, lead_number = _leading(divisor)
        while left.coefficients:
            monomial, number = _leading(left)
            term = Polynomial({monomial: number})
            factors = _without(monomial, lead)
            times = number // lead_number
            if factors is None or times == 0:
                rest, left = rest + term, left - term
                continue
            part = Polynomial({factors: times})
            quotient, left = quotient + part, left - part * divisor
            if number % lead_number:
                remaining = Polynomial({monomial: number % lead_number})
                rest, left = rest + remaining, left - remaining
        return quotient, rest

    def substitute(self, atom: SizeExpr, value: Polynomial) -> Polynomial:
        """The polynomial with `value` in place of `atom` wherever it is a factor."""
        total = Polynomial({})
        for monomial, number in self.coefficients.items():
            term = Polynomial({tuple(a for a in monomial if a != atom): number})
            total = total + reduce(Polynomial.__mul__, [value] * monomial.count(atom), term)
        return total

    def to_size(self) -> Size:
        """The size expression that says the same."""
        terms: list[Size] = []
        for monomial, number in sorted(self.coefficients.items(), key=lambda item: (-len(item[0]), str(item[0]))):
            terms.append(product((*monomial, number)) if monomial else number)
        if len(terms) > 1:
            return SizeExpr("add", tuple(terms))
        return terms[0] if terms else 0


def polynomial_of(size: Scalar) -> Polynomial:
    """The polynomial of a size."""
    if not isinstance(size, SizeExpr):
        assert isinstance(size, int), f"not a size: {size!r}"
        return Polynomial({(): int(size)} if size else {})
    arguments = size.args
    if size.op in ("add", "mul") and all(isinstance(a, int | SizeExpr) for a in arguments):
        parts = [polynomial_of(a) for a in arguments if isinstance(a, int | SizeExpr)]
        return reduce(Polynomial.__add__ if size.op == "add" else Polynomial.__mul__, parts)
    if size.op == "pow":
        base, power = arguments
        if isinstance(base, SizeExpr) and isinstance(power, int) and 0 < power <= _MAX_POWER:
            return reduce(Polynomial.__mul__, [polynomial_of(base)] * power)
    return Polynomial({(size,): 1})


def at_most(a: Polynomial, b: Polynomial) -> SizeExpr | bool:
    """The condition a <= b, common terms and factors cancelled."""
    difference = b - a
    if difference.constant is not None:
        return difference.constant >= 0
    factor = gcd(*difference.coefficients.values())
    right = Polynomial({m: n // factor for m, n in difference.coefficients.items() if n > 0})
    left = Polynomial({m: -n // factor for m, n in difference.coefficients.items() if n < 0})
    return SizeExpr("le", (left.to_size(), right.to_size()))


def _as_polynomial(number: Polynomial | int) -> Polynomial:
    return number if isinstance(number, Polynomial) else polynomial_of(number)


def _leading(polynomial: Polynomial) -> tuple[Monomial, int]:
    """The term of the highest degree; of several, one that is the same for every polynomial they occur in."""
    return max(polynomial.coefficients.items(), key=lambda item: (len(item[0]), [str(a) for a in item[0]]))


def _without(monomial: Monomial, divisor: Monomial) -> Monomial | None:
    """monomial / divisor, or None."""
    left = list(monomial)
    for factor in divisor:
        if factor not in left:
            return None
        left.remove(factor)
    return tuple(left)


def _sign(monomial: Monomial) -> int:
    """1 when the monomial is never below 0, -1 when it is never above, 0 when neither is known."""
    sign = 1
    for atom in monomial:
        sign *= _atom_sign(atom)
    return sign


def _atom_sign(atom: SizeExpr) -> int:
    if atom.op == "symbol":
        return 1
    signs = [_size_sign(a) for a in atom.args if not isinstance(a, str)]
    if atom.op in ("floordiv", "mod") and signs[1] > 0:
        return signs[0] if atom.op == "floordiv" else 1
    if atom.op == "max" and any(sign > 0 for sign in signs):
        return 1
    if atom.op == "min" and all(sign > 0 for sign in signs):
        return 1
    return 0


def _size_sign(size: Scalar) -> int:
    if not isinstance(size, int | SizeExpr):
        return 0
    polynomial = polynomial_of(size)
    if polynomial.is_nonnegative():
        return 1
    return -1 if (polynomial * -1).is_nonnegative() else 0
