"""Overlap of regions whose sizes are symbols: proved, refuted, or reduced to a condition. Never guessed.

    x[:s0]     x[s0:]       disjoint: one ends where the other starts
    x[:, :s2]  x[:, s2:]    disjoint: rows repeat with the period s1, and in it one ends where the other starts
    x[:s0]     x[s1:]       unknown, disjoint if s0 <= s1

Assumed: symbols are sizes, hence >= 0 (or `symbols_at_least`); strides are not negative; and, since an empty region
shares nothing, that every size of both regions is at least 1 when they are shown to be disjoint. Addresses are
polynomials in the symbols, and one is known not to be negative when no term of it can be.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import gcd
from typing import TypeAlias

from dovetail.analysis.footprint import footprint_of, meet
from dovetail.analysis.polynomials import Polynomial, at_most, polynomial_of
from dovetail.analysis.region import Region
from dovetail.analysis.verdict import Overlap, Reason, Verdict, overlap_from
from dovetail.ir.sizes import Size, SizeExpr, symbol

# Stride in bytes and size.
_Dim: TypeAlias = tuple[Polynomial, Polynomial]

_ZERO = polynomial_of(0)


def symbolic_overlap(a: Region, b: Region, symbols_at_least: int = 0) -> Overlap:
    """Whether two regions of one storage share a byte; a guard where that depends on the symbols."""
    if _has_negative_stride(a) or _has_negative_stride(b):
        return Overlap(Verdict.UNKNOWN, Reason.SYMBOLIC)
    distance = polynomial_of(b.start_bytes) - polynomial_of(a.start_bytes)
    if distance.constant is not None:
        one, other = footprint_of(_numbers_of(a, 0)), footprint_of(_numbers_of(b, distance.constant))
        if one is not None and other is not None:
            return overlap_from(meet(one, other))
    here, there = _Side.of(a), _Side.of(b)
    smallest = _Facts.symbols_at_least(symbols_at_least, (*a.sizes, *b.sizes, *a.strides_bytes, *b.strides_bytes))
    facts = smallest.with_sizes_from_one([size for _, size in (*here.dims, *there.dims)])
    alternatives: list[SizeExpr] = []
    for reason, conditions in _ways_to_be_disjoint(here, there, distance):
        if all(facts.know_order(small, large) for small, large in conditions):
            return Overlap(Verdict.DISJOINT, reason)
        if not any(facts.know_order(large + 1, small) for small, large in conditions):
            alternatives += _conjunction(at_most(small, large) for small, large in conditions)
    if _share_a_first_byte(here, there, distance, smallest):
        return Overlap(Verdict.OVERLAPPING, Reason.SAME_BYTES)
    if not alternatives:
        sizes = [size for _, size in (*here.all_dims, *there.all_dims)]
        for size in sizes:
            if not smallest.know_order(polynomial_of(1), size):
                alternatives += _conjunction([at_most(size, _ZERO)])
    return Overlap(Verdict.UNKNOWN, Reason.SYMBOLIC, _disjunction(alternatives))


def symbolic_self_overlap(region: Region, symbols_at_least: int = 0) -> Overlap:
    """Whether two different elements of the region share a byte; a guard where that depends on the symbols."""
    if _has_negative_stride(region):
        return Overlap(Verdict.UNKNOWN, Reason.SYMBOLIC)
    dims = [(stride, size) for stride, size in _Side.of(region).all_dims if size.constant != 1]
    smallest = _Facts.symbols_at_least(symbols_at_least, (*region.sizes, *region.strides_bytes))
    facts = smallest.with_sizes_from_one([size for _, size in dims])
    item = polynomial_of(region.itemsize)
    if _are_nested(dims, item, facts):
        return Overlap(Verdict.DISJOINT, Reason.NESTED_STRIDES)
    is_full = all(smallest.know_order(polynomial_of(1), size) for _, size in dims)
    two = polynomial_of(2)
    if is_full and any(s.constant == 0 and smallest.know_order(two, size) for s, size in dims):
        return Overlap(Verdict.OVERLAPPING, Reason.SAME_BYTES)
    conditions: list[SizeExpr | bool] = []
    reach = item
    for stride, size in reversed(dims):
        either = [at_most(reach, stride), at_most(size, polynomial_of(1))]
        conditions.append(True in either or _disjunction([c for c in either if isinstance(c, SizeExpr)]) or False)
        reach = reach + (size - 1) * stride
    return Overlap(Verdict.UNKNOWN, Reason.SYMBOLIC, _disjunction(_conjunction(conditions)))


# --- regions as polynomials -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Side:
    """A region without its start. dims: those that reach further than one element; all_dims: every one."""

    dims: tuple[_Dim, ...]
    all_dims: tuple[_Dim, ...]
    item: Polynomial

    @staticmethod
    def of(region: Region) -> _Side:
        pairs = zip(region.strides_bytes, region.sizes, strict=True)
        every = tuple((polynomial_of(stride), polynomial_of(size)) for stride, size in pairs)
        reaching = tuple((s, n) for s, n in every if s.constant != 0 and n.constant != 1)
        return _Side(reaching, every, polynomial_of(region.itemsize))

    def length(self, period: Polynomial | None = None) -> Polynomial:
        """First byte to one past the last, of the whole or, apart from dimensions that are multiples, of a period."""
        total = self.item
        for stride, size in self.dims:
            if period is None or stride.divided_by(period)[1].coefficients:
                total = total + (size - 1) * stride
        return total

    def run(self, facts: _Facts) -> Polynomial:
        """Bytes from the start on that are surely occupied without a gap."""
        total = self.item
        left = list(self.dims)
        while True:
            joining = next((dim for dim in left if facts.know_order(dim[0], total)), None)
            if joining is None:
                return total
            left.remove(joining)
            total = total + (joining[1] - 1) * joining[0]


def _numbers_of(region: Region, start_bytes: int) -> Region:
    """The region moved, with a number in place of each expression that has one value."""

    def number(size: Size) -> Size:
        constant = polynomial_of(size).constant
        return size if constant is None else constant

    sizes, strides = tuple(map(number, region.sizes)), tuple(map(number, region.strides_bytes))
    return replace(region, start_bytes=start_bytes, sizes=sizes, strides_bytes=strides)


def _has_negative_stride(region: Region) -> bool:
    return any(isinstance(stride, int) and stride < 0 for stride in region.strides_bytes)


# --- what is known of the symbols -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Facts:
    """Atoms, each with what it stands for: a polynomial whose own symbols may be any numbers >= 0."""

    meanings: tuple[tuple[SizeExpr, Polynomial], ...] = ()

    @staticmethod
    def symbols_at_least(least: int, sizes: Iterable[object]) -> _Facts:
        if least <= 0:
            return _Facts()
        names = sorted({name for size in sizes if isinstance(size, SizeExpr) for name in size.symbols()})
        return _Facts(tuple((symbol(name), polynomial_of(symbol(name)) + least) for name in names))

    def with_sizes_from_one(self, sizes: Sequence[Polynomial]) -> _Facts:
        """These facts, and that each size is at least 1, as far as it can be said of one atom."""
        facts = self
        for size in sizes:
            meaning = _meaning_of_positive(facts.apply(size) - 1)
            if meaning is not None:
                facts = _Facts((*facts.meanings, meaning))
        return facts

    def apply(self, polynomial: Polynomial) -> Polynomial:
        for atom, meaning in self.meanings:
            polynomial = polynomial.substitute(atom, meaning)
        return polynomial

    def know_order(self, small: Polynomial, large: Polynomial) -> bool:
        """Whether small <= large is known."""
        difference = large - small
        return difference.is_nonnegative() or self.apply(difference).is_nonnegative()


def _meaning_of_positive(excess: Polynomial) -> tuple[SizeExpr, Polynomial] | None:
    """An atom and its meaning, when excess >= 0 bounds it from below; None when there is nothing to learn so."""
    if excess.is_nonnegative():
        return None
    for monomial, number in excess.coefficients.items():
        if len(monomial) != 1 or number <= 0 or sum(monomial[0] in other for other in excess.coefficients) != 1:
            continue
        slack = polynomial_of(symbol(f"{monomial[0]}'"))
        bound = (excess - Polynomial({monomial: number})) * -1
        if number == 1 and bound.is_nonnegative():
            return monomial[0], slack + bound
        if bound.constant is not None and bound.constant > 0:
            return monomial[0], slack + -(-bound.constant // number)
    return None


# --- proofs ---------------------------------------------------------------------------------------------------------


def _ways_to_be_disjoint(
    here: _Side, there: _Side, distance: Polynomial
) -> Iterator[tuple[Reason, tuple[tuple[Polynomial, Polynomial], ...]]]:
    """Conditions under which two regions are disjoint, each a list of pairs (small, large) with small <= large.

    Either one ends before the other starts; or both repeat with a period, and within one period one ends before the
    other starts, and the other ends before the next period starts.
    """
    yield Reason.INTERVALS, ((here.length(), distance),)
    yield Reason.INTERVALS, ((distance + there.length(), _ZERO),)
    for period in _periods(here, there):
        length, other_length = here.length(period), there.length(period)
        rest = distance.divided_by(period)[1]
        for start in (rest, rest + period):
            yield Reason.PERIOD, ((length, start), (start + other_length, period))


def _periods(here: _Side, there: _Side) -> list[Polynomial]:
    """Strides that may be periods of both regions, and the greatest common divisor of those that are numbers."""
    found: list[Polynomial] = []
    common = 0
    for stride, _ in (*here.dims, *there.dims):
        common = gcd(common, stride.constant or 0)
        if stride not in found:
            found.append(stride)
    shared = polynomial_of(common)
    return found if common == 0 or shared in found else [*found, shared]


def _share_a_first_byte(here: _Side, there: _Side, distance: Polynomial, facts: _Facts) -> bool:
    """Whether one region surely has the first byte of the other, and neither is empty for any sizes."""
    if not all(facts.know_order(polynomial_of(1), size) for _, size in (*here.all_dims, *there.all_dims)):
        return False
    for side, offset in ((here, distance), (there, distance * -1)):
        if facts.know_order(_ZERO, offset) and facts.know_order(offset + 1, side.run(facts)):
            return True
    return False


def _are_nested(dims: Sequence[_Dim], reach: Polynomial, facts: _Facts) -> bool:
    """Whether, in some order, each stride surely steps over all that the ones before it reach."""
    if not dims:
        return True
    for place, (stride, size) in enumerate(dims):
        others = [*dims[:place], *dims[place + 1 :]]
        if facts.know_order(reach, stride) and _are_nested(others, reach + (size - 1) * stride, facts):
            return True
    return False


# --- conditions -----------------------------------------------------------------------------------------------------


def _conjunction(conditions: Iterable[SizeExpr | bool]) -> list[SizeExpr]:
    """The condition that all hold, or nothing when that cannot be."""
    needed = list(dict.fromkeys(c for c in conditions if c is not True))
    if not needed or False in needed:
        return []
    terms = [c for c in needed if isinstance(c, SizeExpr)]
    return [terms[0] if len(terms) == 1 else SizeExpr("and", tuple(terms))]


def _disjunction(alternatives: Sequence[SizeExpr]) -> SizeExpr | None:
    distinct = tuple(dict.fromkeys(alternatives))
    if len(distinct) > 1:
        return SizeExpr("or", distinct)
    return distinct[0] if distinct else None
