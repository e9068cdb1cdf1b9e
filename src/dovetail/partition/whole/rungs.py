"""The limits that a solver is given, and its schedule for each of them.

They are the rungs of a ladder between what one node needs and what the program needs as it is, whatever limit is asked
for.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

from dovetail.partition.whole.bounds import lowest_peak
from dovetail.partition.whole.problem import NEVER, WholeProblem
from dovetail.partition.whole.schedule import Schedule
from dovetail.partition.whole.solve import QUICK, Quick, solve_whole
from dovetail.partition.whole.walk import Walker

LONG = 500  # nodes
LOWEST = 3  # rungs at the lower end that are looked at for the lowest peak
_MOST_RUNGS, _LEAST_RUNGS = 64, 8
_STEPS = 1_500_000  # nodes on all rungs, above which there are fewer rungs
_WEIGHED_STEPS = 300_000  # the same for programs that are weighed on each rung
_FEW_STORAGES = 12  # so many that may be dropped make a problem that is searched for the best at each rung
_FEW_STATES = 40  # of that search


class Rungs:
    """Schedules by rung, each looked for once. count: of the rungs; the program as it is would be the next one."""

    def __init__(self, problem: WholeProblem, peak_bytes: int, count: int) -> None:
        """peak_bytes: of the program as it is."""
        self.problem = problem
        self.count = count
        self._peak = peak_bytes
        self._low = min(largest_node(problem), peak_bytes)
        self._is_long = len(problem.reads) >= LONG and not problem.writes
        self._is_small = sum(problem.can_drop) <= _FEW_STORAGES
        self._schedules: dict[int, Schedule] = {}
        self._walker = Walker(problem)
        self._quick_ones: dict[int, Quick] = {}
        self._searched: dict[tuple[int, int, float], Schedule] = {}
        self._least = 0 if problem.writes else lowest_peak(problem)

    def budget(self, rung: int) -> int:
        """The solver's limit."""
        return self._low + (self._peak - self._low) * rung // self.count

    def quick(self, rung: int) -> Quick:
        """What a few walks find."""
        if rung not in self._quick_ones:
            self._quick_ones[rung] = Quick(self.problem, self.budget(rung), self._walker, self._weights)
        return self._quick_ones[rung]

    @cached_property
    def _weights(self) -> tuple[float, ...]:
        """Exponents for quick solutions: those first, for long programs, that were best half way up."""
        if not self._is_long:
            return QUICK
        limit = self.budget(self.count // 2)

        def cost(weight: float) -> tuple[int, int]:
            found = self._walker.walk(limit, weight, {})
            return (NEVER, NEVER) if found is None else (max(found.peak_bytes, limit), found.work)

        return tuple(sorted(QUICK, key=cost))

    def schedule(self, rung: int) -> Schedule:
        """The schedule of a rung."""
        if not self._is_small:
            return self.quick(rung).best[0]
        if rung not in self._schedules:
            self._schedules[rung] = solve_whole(self.problem, self.budget(rung), _FEW_STATES, quick=self.quick(rung))
        return self._schedules[rung]

    def searched(self, limit_bytes: int, at_least: int = 0, at_most: float = NEVER) -> Schedule:
        """The best that is found under a limit between the rungs, or at one. at_least, at_most: see `solve_whole`."""
        key = (limit_bytes, at_least, at_most)
        if key not in self._searched:
            known = (quick for quick in self._quick_ones.values() if quick.limit_bytes == limit_bytes)
            quick = next(known, None) or Quick(self.problem, limit_bytes, self._walker, self._weights)
            found = solve_whole(self.problem, limit_bytes, at_least=at_least, at_most=at_most, quick=quick)
            self._searched[key] = found
        return self._searched[key]

    def fits(self, rung: int, most_work: float = NEVER, walks: int = len(QUICK)) -> bool:
        """Whether a rung's schedule keeps its limit, with no more work than that. walks: that are asked at most."""
        if self.budget(rung) < self._least:
            return False  # none does
        if not self._is_small:
            return self.quick(rung).keeps(most_work, walks)
        schedule = self.schedule(rung)
        return schedule.peak_bytes <= self.budget(rung) and schedule.work <= most_work

    def lowest(self, is_good: Callable[[int], bool], low: int = 0, high: int | None = None) -> int | None:
        """The lowest rung of which something is true that is true of those above. low, high: it is one of these."""
        high = self.count if high is None else high
        while low < high:
            middle = (low + high) // 2
            if is_good(middle):
                high = middle
            else:
                low = middle + 1
        return low if low < self.count else None

    @cached_property
    def bottom(self) -> int:
        """The highest of the rungs that are looked at for the lowest peak.

        The lowest rung that fits is mostly close to what no schedule can do better, so it is looked for from there on.
        """
        low = next((rung for rung in range(self.count) if self.budget(rung) >= self._least), self.count)
        walks = 1 if self._is_long else len(QUICK)  # those without an end take longest
        step, high = (1, low) if self._least else (0, self.count)
        while high < self.count and not self.fits(high, walks=walks):
            low, high, step = high + 1, high + step, 2 * step
        found = self.lowest(lambda rung: self.fits(rung, walks=walks), low, min(high, self.count))
        return min((0 if found is None else found) + LOWEST, self.count) - 1

    @cached_property
    def first(self) -> Schedule:
        """The schedule with the least work of those for the lowest limits that fit."""
        rungs, best = range(self.bottom, max(-1, self.bottom - LOWEST), -1), None
        for rung in rungs:
            if self.fits(rung, NEVER if best is None else best.work):
                found = self.schedule(rung)
                best = found if best is None else min(found, best, key=_order)
        return best or min([self.schedule(rung) for rung in rungs], key=_order)


def _order(schedule: Schedule) -> tuple[int, int]:
    return schedule.work, schedule.peak_bytes


def rungs_for(nodes: int, *, is_weighed: bool) -> int:
    """How many rungs there are for a program: fewer for long ones, and for those that are weighed on each rung."""
    rungs = _MOST_RUNGS
    while rungs > _LEAST_RUNGS and nodes * rungs > (_WEIGHED_STEPS if is_weighed else _STEPS):
        rungs //= 2
    return rungs


def largest_node(problem: WholeProblem) -> int:
    """Bytes of the operands and results of the node that has most of them, scratch included."""
    found = 0
    for reads, makes, scratch in zip(problem.reads, problem.makes, problem.scratch, strict=True):
        places = {problem.places[storage] for storage in (*reads, *makes)} - {-1}
        found = max(found, scratch + sum([problem.sizes[place] for place in places]))
    return found
