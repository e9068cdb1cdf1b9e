"""Can a bounded sum of multiples fall into an interval? The number theory behind strided overlap.

The question is: are there integers z_k with 0 <= z_k <= u_k such that

    low <= c_1 z_1 + ... + c_n z_n <= high          (all c_k > 0)

Two strided regions share a byte exactly when such a sum exists for the strides of both. The problem is NP-complete, so
it is answered in increasingly expensive steps, each one exact:

1. Interval and gcd. The sum lies in [0, sum c_k u_k] and is a multiple of gcd(c_k).
2. Absorption. When all variables at 0, or all at u_k, reach the interval, the answer is yes. When the interval holds as
   many multiples of the gcd as the smallest coefficient can step over, the sum of the others decides: the interval is
   made longer by c_1 u_1 and the term goes. Coefficients that divide one another (the strides of a contiguous tensor
   and of all its slices) are all absorbed, so that most questions end here, in O(n).
3. Depth-first search from the largest coefficient. Each choice must keep the rest within interval and gcd; choices are
   stepped through by solving the congruence modulo the gcd of the rest. It gives up after a number of visits.
4. Bit sets. The sums of one half of the terms and of the other are two big integers, one bit for each reachable sum;
   a common bit, after a shift, is a solution. O(sum / word size * log of the counts), whatever the coefficients.

Where the sums are too large for bit sets and the search gave up, the answer is "unknown", never a guess.

Source: the problem and the search by Euclid's algorithm with gcd pruning are described in the documentation of NumPy's
`mem_overlap` (P. Virtanen, 2015); absorption and the bit sets (dynamic programming for subset sums, R. Bellman, 1957)
bound the time where that search takes minutes.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import gcd, prod
from typing import TypeAlias

# Coefficient and the largest value of its variable; both positive.
Term: TypeAlias = tuple[int, int]

# Half of the largest sum, in units of the gcd of all terms, up to which bit sets decide: integers of 32 MiB each.
BITSET_UNITS = 1 << 28
# Visits of the search before bit sets take over, and where they cannot.
_VISITS_BEFORE_BITSETS = 4_000
_VISITS_ALONE = 200_000
_RESIDUES_PER_VISIT = 8
# What one visit, and 1,024 units of bit sets, take off a budget; both are microseconds, about.
_VISIT_COST = 2
_UNITS_PER_COST = 512


class Step(enum.Enum):
    """The step that decided, or the reason why none did."""

    INTERVAL = "interval"
    GCD = "gcd"
    ABSORPTION = "absorption"
    SEARCH = "search"
    BITSET = "bitset"
    WORK_LIMIT = "work limit"


@dataclass(frozen=True, slots=True)
class Answer:
    """solvable: None when unknown, which is so exactly when the step is WORK_LIMIT."""

    solvable: bool | None
    step: Step


@dataclass(slots=True)
class Budget:
    """Work left for a series of questions, in microseconds of a present-day core, roughly."""

    left: float = field(default=float("inf"))


_NO_BY_INTERVAL = Answer(False, Step.INTERVAL)
_NO_BY_GCD = Answer(False, Step.GCD)
_NO_BY_ABSORPTION = Answer(False, Step.ABSORPTION)
_YES_BY_ABSORPTION = Answer(True, Step.ABSORPTION)
_GIVEN_UP = Answer(None, Step.WORK_LIMIT)


def solve(
    terms: Sequence[Term], low: int, high: int, budget: Budget | None = None, *, with_bitsets: bool = True
) -> Answer:
    """Whether a sum of multiples of the coefficients lies in the closed interval [low, high].

    Args:
        terms: (coefficient, largest value of its variable), both positive; ascending coefficients, none twice.
        low, high: the interval, low <= high.
        budget: work that a series of questions shares; only the search and the bit sets draw on it.
        with_bitsets: whether the last step may be taken.
    """
    divisors = []
    total = divisor = 0
    for coefficient, count in reversed(terms):
        divisor = gcd(divisor, coefficient)
        divisors.append(divisor)
        total += coefficient * count
    if high < 0 or low > total:
        return _NO_BY_INTERVAL
    no = _NO_BY_GCD
    for place, (coefficient, count) in enumerate(terms):
        divisor = divisors[-1 - place]
        low, high = -(-low // divisor) * divisor, high // divisor * divisor
        if low > high or high < 0 or low > total:
            return no
        if low <= 0 or high >= total:
            return _YES_BY_ABSORPTION  # all variables at one of their ends
        if high - low + divisor < coefficient:
            return _search_then_bitsets(terms[place:], divisor, low, high, budget or Budget(), with_bitsets)
        low -= coefficient * count
        total -= coefficient * count
        no = _NO_BY_ABSORPTION
    return _YES_BY_ABSORPTION if low <= 0 <= high else no


def are_distinct(terms: Sequence[Term], run: int, budget: Budget | None = None) -> Answer:
    """Whether all sums of multiples, each plus 0 <= j < run, are different numbers: counted in one bit set.

    Args: as for `solve`; a coefficient may occur twice. Solvable means that they are.
    """
    budget = budget or Budget()
    divisor = gcd(*(coefficient for coefficient, _ in terms))
    if divisor and divisor % run == 0:
        terms, run = [(coefficient // run, count) for coefficient, count in terms], 1
    total = run + sum(coefficient * count for coefficient, count in terms)
    wanted = run * prod(count + 1 for _, count in terms)
    if wanted > total:
        return Answer(False, Step.INTERVAL)
    cost = total // _UNITS_PER_COST
    if total > BITSET_UNITS or cost > budget.left:
        return _GIVEN_UP
    budget.left -= cost
    return Answer(_sums(sorted(terms), (1 << run) - 1, None).bit_count() == wanted, Step.BITSET)


def _search_then_bitsets(
    terms: Sequence[Term], divisor: int, low: int, high: int, budget: Budget, with_bitsets: bool
) -> Answer:
    """Steps 3 and 4, over multiples of `divisor`, to which low and high are rounded already."""
    if divisor > 1:
        terms = [(coefficient // divisor, count) for coefficient, count in terms]
        low, high = low // divisor, high // divisor
    total = sum(coefficient * count for coefficient, count in terms)
    fits = with_bitsets and total <= 2 * BITSET_UNITS
    cost = total // _UNITS_PER_COST
    visits = min(max(64, cost // _VISIT_COST), _VISITS_BEFORE_BITSETS) if fits or not with_bitsets else _VISITS_ALONE
    visits = min(visits, int(min(budget.left, 1 << 40)) // _VISIT_COST)
    search = _Search(terms, visits)
    found = search.run(low, high)
    budget.left -= (visits - search.visits) * _VISIT_COST
    if found is not None:
        return Answer(found, Step.SEARCH)
    if not fits or cost > budget.left:
        return _GIVEN_UP
    budget.left -= cost
    return Answer(_bitsets_meet(terms, low, high), Step.BITSET)


# --- depth-first search ---------------------------------------------------------------------------------------------


class _OutOfVisitsError(Exception):
    """The search has used up its visits."""


class _Search:
    """Depth-first search from the largest coefficient down, within a number of visits."""

    def __init__(self, terms: Sequence[Term], visits: int) -> None:
        self.terms = terms
        self.visits = visits
        # Of the first k terms: the gcd of the coefficients, and the largest sum.
        self.divisors, self.totals = [0], [0]
        for coefficient, count in terms:
            self.divisors.append(gcd(self.divisors[-1], coefficient))
            self.totals.append(self.totals[-1] + coefficient * count)
        # For term k: the period of the choices that keep the rest divisible, and an inverse modulo that period.
        self.periods, self.inverses = [], []
        for k, (coefficient, _) in enumerate(terms):
            period = self.divisors[k] // self.divisors[k + 1]
            self.periods.append(period)
            self.inverses.append(pow(coefficient // self.divisors[k + 1], -1, period) if period > 1 else 0)

    def run(self, low: int, high: int) -> bool | None:
        """Whether there is a solution; None when the visits ran out."""
        try:
            return self._visit(len(self.terms), low, high)
        except _OutOfVisitsError:
            return None

    def _visit(self, length: int, low: int, high: int) -> bool:
        """Whether the first `length` terms reach [low, high]."""
        if self.visits <= 0:
            raise _OutOfVisitsError
        self.visits -= 1
        divisor = self.divisors[length]
        low, high = -(-low // divisor) * divisor, high // divisor * divisor
        if low > high or high < 0 or low > self.totals[length]:
            return False
        if length == 1 or low <= 0 or high >= self.totals[length]:
            return True  # with one term, a multiple of the one coefficient lies in both intervals
        coefficient = self.terms[length - 1][0]
        for choice in self._choices(length - 1, low, high):
            taken = coefficient * choice
            if self._visit(length - 1, low - taken, high - taken):
                return True
        return False

    def _choices(self, place: int, low: int, high: int) -> Iterator[int]:
        """Values of one variable for which the terms below can still reach the interval."""
        coefficient, count = self.terms[place]
        first = max(0, -((self.totals[place] - low) // coefficient))
        last = min(count, high // coefficient)
        divisor, period = self.divisors[place + 1], self.periods[place]
        residues = (high - low) // divisor + 1
        if residues >= min(period, last - first + 1):
            yield from range(first, last + 1)
            return
        self.visits -= residues // _RESIDUES_PER_VISIT
        for residue in range(residues):
            start = (low // divisor + residue) * self.inverses[place] % period
            yield from range(first + (start - first) % period, last + 1, period)


# --- bit sets -------------------------------------------------------------------------------------------------------


def _bitsets_meet(terms: Sequence[Term], low: int, high: int) -> bool:
    """Whether the terms reach [low, high], from the sets of sums of two halves of them.

    With lower + upper = total of the two halves, sum = x + y lies in the interval exactly when x = high - y - slack for
    some 0 <= slack <= high - low; and y is a sum of the upper half exactly when upper - y is.
    """
    total = sum(coefficient * count for coefficient, count in terms)
    if low + high > total:  # every z_k is as good as u_k - z_k, and smaller sums have shorter sets
        low, high = total - high, total - low
    lower_terms, upper_terms = _halves(terms, total // 2)
    upper = sum(coefficient * count for coefficient, count in upper_terms)
    x_set = _sums(lower_terms, 1, high)
    # Bit i stands for y = upper - i plus some slack, hence for x = high - y - slack = high - upper + i - slack.
    y_set = _sums(upper_terms, (1 << (high - low + 1)) - 1, None)
    shift = low - upper
    return bool(x_set & (y_set << shift if shift >= 0 else y_set >> -shift))


def _halves(terms: Sequence[Term], half: int) -> tuple[list[Term], list[Term]]:
    """The terms in two lists, the sums of either at most about `half`; one term may be cut in two."""
    lower: list[Term] = []
    upper: list[Term] = []
    for coefficient, count in terms:
        fitting = min(count, max(0, half // coefficient))
        half -= fitting * coefficient
        if fitting:
            lower.append((coefficient, fitting))
        if count > fitting:
            upper.append((coefficient, count - fitting))
    return lower, upper


def _sums(terms: Sequence[Term], start: int, most: int | None) -> int:
    """The set of sums of the terms and of a member of `start`, as the bits of an integer; not beyond `most`."""
    reached = start
    for coefficient, count in terms:
        copies = 1
        while copies <= count:
            step = min(copies, count + 1 - copies)
            reached |= reached << coefficient * step
            copies += step
        if most is not None and reached.bit_length() > most + 1:
            reached &= (1 << (most + 1)) - 1
    return reached
