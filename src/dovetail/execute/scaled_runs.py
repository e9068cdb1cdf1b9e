"""What operators take that are too large to be run: they run at smaller sizes, and what is found is extrapolated.

Equal sizes of a call (of its tensors, and among its other operands) are scaled alike, those of the first dimensions
before others, as kernels work through these one after the other; of some operators single dimensions (`ops.scaling`).
Each is tried at three sizes: what is taken may be constant in it, grow in proportion, or with its square. From sizes
that matter, combined, follows a polynomial; one more run has to agree with it. Where nothing agrees, or an operator is
not known to be safe at other sizes, it is not known what it takes.

Source: Lagrange interpolation on a grid.
Cost:   some dozen runs of a few MiB for each call, at most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product
from typing import TypeAlias

from dovetail.analysis.liveness import Need
from dovetail.execute.operator_calls import OperatorCall
from dovetail.ops.facts import facts_of
from dovetail.ops.scaling import Axis, axes_of, chooses_by_size, has_equal_sizes

_Run: TypeAlias = Callable[[Sequence[OperatorCall]], Sequence[Need | None]]
_Point: TypeAlias = Mapping[int, int]  # by the number of what is scaled, its size

_SMALLEST_SCALED = 16  # equal sizes below stay: they may be positions of dimensions, or numbers of groups
_LOWEST = (64, 16, 2)  # what sizes are scaled down to, one after the other
_LOWEST_FIRST = 2  # those of first dimensions
_ROUNDING = 64  # bytes by which kernels align what they take
_BELOW_LIMIT = 12  # operands and results of the smallest run are so many times below the limit
_MOST_RUNS = 81
_FEWEST = 4  # a single dimension of fewer elements is not scaled
_MORE = 4


def extrapolate(calls: Sequence[OperatorCall], largest_bytes: int, run: _Run) -> list[Need | None]:
    """What each call needs, from runs at smaller sizes; None where they do not show it.

    largest_bytes: half of what operands and results of the largest run may have. run: runs calls, and says what each
    needs; None where it cannot be run.
    """
    found: list[Need | None] = [None] * len(calls)
    waiting = {at: _trials(call, largest_bytes) for at, call in enumerate(calls)}
    while waiting:
        trials = {at: trial for at, more in waiting.items() if (trial := next(more, None)) is not None}
        waiting = {at: waiting[at] for at in trials}
        for at, need in zip(trials, _outcomes(list(trials.values()), run), strict=True):
            if need is not None:
                found[at] = need
                del waiting[at]
    return found


@dataclass(frozen=True, slots=True)
class _Scaled:
    """Something that is scaled. size: as it is. sizes: three to try, and one to check. axis: None for equal sizes."""

    size: int
    sizes: tuple[int, int, int, int]
    axis: Axis | None = None

    def applied(self, call: OperatorCall, size: int) -> OperatorCall:
        """The call with another size."""
        return call.scaled({self.size: size}) if self.axis is None else call.scaled_along(self.axis, self.size, size)


@dataclass(frozen=True, slots=True)
class _Trial:
    """A call, and what is scaled."""

    call: OperatorCall
    scaled: tuple[_Scaled, ...]

    def at(self, point: _Point) -> OperatorCall:
        """The call at some sizes; others are the smallest."""
        call = self.call
        for number, scaled in enumerate(self.scaled):
            call = scaled.applied(call, point.get(number, scaled.sizes[0]))
        return call

    def star(self) -> list[OperatorCall]:
        """The smallest run, and those in which one size is larger."""
        larger = [self.at({n: size}) for n, scaled in enumerate(self.scaled) for size in scaled.sizes[1:3]]
        return [self.at({}), *larger]

    def wanted(self, star: Sequence[Need]) -> dict[int, tuple[int, ...]]:
        """For each that matters, the sizes that are needed to know how it does."""
        found: dict[int, tuple[int, ...]] = {}
        for number, scaled in enumerate(self.scaled):
            first, middle, last = star[0], *star[1 + 2 * number : 3 + 2 * number]
            low, between, high, _ = scaled.sizes
            if first != middle or first != last:
                line = [
                    Fraction(a * (high - between) + b * (between - low), high - low)
                    for a, b in zip(_numbers(first), _numbers(last), strict=True)
                ]
                off = max(abs(x - y) for x, y in zip(line, _numbers(middle), strict=True))
                found[number] = (low, high) if off <= _ROUNDING else (low, between, high)
        return found

    def grid(self, wanted: Mapping[int, Sequence[int]]) -> list[_Point]:
        """All combinations of sizes; the last one is to be checked."""
        combined = [dict(zip(wanted, chosen, strict=True)) for chosen in product(*wanted.values())]
        return [*combined, {n: self.scaled[n].sizes[3] for n in wanted or range(len(self.scaled))}]

    def need(self, wanted: Mapping[int, Sequence[int]], values: Sequence[Need]) -> Need | None:
        """What the call needs at its own sizes; None where the last value is another than expected."""
        *known, checked = values
        expected = self._value(wanted, known, {n: self.scaled[n].sizes[3] for n in wanted})
        pairs = zip(expected, _numbers(checked), strict=True)
        if any(abs(value - number) > _ROUNDING + number // 1000 for value, number in pairs):
            return None
        own = self._value(wanted, known, {n: self.scaled[n].size for n in wanted})
        if min(own) < 0:
            return None
        scratch, *kept = map(round, own)
        return Need(scratch, tuple(kept) if any(kept) else ())

    def _value(self, wanted: Mapping[int, Sequence[int]], known: Sequence[Need], at: _Point) -> list[Fraction]:
        """The polynomial through known values on the grid, at another point."""
        total = [Fraction(0)] * len(_numbers(known[0]))
        for place, need in zip(self.grid(wanted), known, strict=False):
            weight = Fraction(1)
            for number, here in place.items():
                for other in wanted[number]:
                    weight *= Fraction(at[number] - other, here - other) if other != here else 1
            total = [so_far + weight * number for so_far, number in zip(total, _numbers(need), strict=True)]
        return total


def _numbers(need: Need) -> tuple[int, ...]:
    return (need.scratch_bytes, *need.kept_bytes)


def _outcomes(trials: Sequence[_Trial], run: _Run) -> Iterator[Need | None]:
    """What the trials show; None where one shows nothing."""
    stars = map(_whole, _grouped([trial.star() for trial in trials], run))
    wanted = [None if star is None else trial.wanted(star) for trial, star in zip(trials, stars, strict=True)]
    grids = [
        [] if sizes is None else [trial.at(point) for point in trial.grid(sizes)]
        for trial, sizes in zip(trials, wanted, strict=True)
    ]
    grids = [grid if len(grid) <= _MOST_RUNS else [] for grid in grids]
    for trial, sizes, values in zip(trials, wanted, _grouped(grids, run), strict=True):
        known = _whole(values)
        yield trial.need(sizes, known) if sizes is not None and known else None


def _grouped(groups: Sequence[Sequence[OperatorCall]], run: _Run) -> list[list[Need | None]]:
    """What the calls of each group need, run together."""
    results = iter(run([call for group in groups for call in group]))
    return [[next(results) for _ in group] for group in groups]


def _whole(values: Sequence[Need | None]) -> list[Need] | None:
    """Values of one form; None where one is missing."""
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return None
    most = max(len(need.kept_bytes) for need in known)
    return [Need(need.scratch_bytes, need.kept_bytes or (0,) * most) for need in known]


# --- what to scale ----------------------------------------------------------------------------------------------------


def _trials(call: OperatorCall, largest_bytes: int) -> Iterator[_Trial]:
    """Ways to make a call smaller, those first that are likely to tell most."""
    yield from _along_axes(call, largest_bytes)
    if not has_equal_sizes(call.node):
        return
    place = _places(call)
    first = [size for size in place if place[size] == 0]
    by_place = sorted(place, key=lambda size: (place[size], -size))
    orders = [first, by_place, sorted(place, reverse=True), by_place[::-1]]
    orders += [[other for other in by_place if other != size] for size in by_place[:3]]
    tried = list[Mapping[int, int]]()
    for order in orders:
        lowest = _lowest(call, order, first, largest_bytes)
        if lowest and lowest not in tried:
            tried.append(lowest)
            yield _Trial(call, tuple(_Scaled(n, (x, x * 3 // 2, 2 * x, x * 5 // 2)) for n, x in lowest.items()))


def _places(call: OperatorCall) -> dict[int, int]:
    """Sizes that can be scaled, each with the first dimension that has it; dimensions of one element are left out."""
    place: dict[int, int] = {}
    for tensor in call.tensors:
        for dim, size in enumerate(size for size in tensor.shape if size != 1):
            if size >= _SMALLEST_SCALED:
                place[size] = min(dim, place.get(size, dim))
    numbers = () if facts_of(call.node.target).pointwise else call.numbers  # which may be products of sizes
    fixed = [number for number in numbers if number >= _SMALLEST_SCALED and number not in place]
    return {size: dim for size, dim in place.items() if all(number % size for number in fixed)}


def _lowest(call: OperatorCall, order: Sequence[int], first: Sequence[int], largest_bytes: int) -> dict[int, int]:
    """Smallest values for some sizes, in the order in which they are scaled; none where that is not enough."""
    found: dict[int, int] = {}
    wanted = largest_bytes // _BELOW_LIMIT
    for least in _LOWEST:
        for size in order:
            now = call.scaled(found).size_bytes
            if now <= wanted:
                return found
            here = found.get(size, size)
            lowest = max(_LOWEST_FIRST if size in first else least, here * wanted // now // 2 * 2)
            if lowest < here:
                found[size] = lowest
    return found if found and call.scaled(found).size_bytes * 5 // 2 <= 2 * largest_bytes else {}


def _along_axes(call: OperatorCall, largest_bytes: int) -> Iterator[_Trial]:
    """Trials that scale single dimensions, as few as are enough: over a wide range, then near its end."""
    scaled = list[_Scaled]()
    smaller = call
    most = most_bytes(call, 2 * largest_bytes)
    for axis in axes_of(call.node):
        size = call.size_along(axis)
        if size is None or size < _FEWEST:
            continue
        one = _Scaled(size, (1, 2, 3, 4), axis)
        each = one.applied(smaller, 2).size_bytes - one.applied(smaller, 1).size_bytes
        last = min((most - one.applied(smaller, 1).size_bytes) // max(each, 1) + 1, size - 1)
        if last >= _FEWEST:
            for sizes in ((max(last // 8, 1), max(last // 4, 2), max(last // 2, 3)), (last - 3, last - 2, last - 1)):
                yield _Trial(call, (*scaled, replace(one, sizes=(*sizes, last))))
            return
        scaled.append(one)
        smaller = one.applied(smaller, 1)


def most_bytes(call: OperatorCall, largest_bytes: int) -> int:
    """What operands and results of a run may have: more where small runs may mislead."""
    return _MORE * largest_bytes if chooses_by_size(call.node) else largest_bytes
