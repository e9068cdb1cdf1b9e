"""Fit a program under a limit with little work, and say how little it could be.

The heuristic (`walk`) takes what each storage counts for. It is tried with a few exponents, then along the plans of the
minimum cuts that bound the work (`bounds`), then with storages counting for more or less than they do, those first
whose making again costs most. Small problems are then searched for the best schedule there is (`exact`). Where
contents may leave for a file, the walk is also tried with transfers that count for more or less of their time, and the
schedules are compared by what they wait; bounds and the search know no file, so nothing is proved then. All
choices are drawn from a generator with a fixed seed, and counted, not timed: equal problems have equal schedules.

Cost: that of up to forty walks, less for long programs, and of the cuts; a few walks where it must be quick.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from itertools import product
from types import MappingProxyType

from dovetail.partition.whole.bounds import Bound, Plan, Position, bound_work, live_bytes, lowest_peak
from dovetail.partition.whole.exact import MOST_STATES, search_best
from dovetail.partition.whole.problem import NEVER, WholeProblem
from dovetail.partition.whole.schedule import Move, Run, Schedule, schedule_of
from dovetail.partition.whole.walk import NO_MOST, Most, Walker

_WEIGHTS = (0.5, 0.25, 0.0)  # what the time to the next use counts for, as an exponent
_SHARES = (1.0, 0.25, 0.0)  # what counts of the time of transfers
QUICK = (0.25, 0.5, 0.0)  # as `_WEIGHTS`, for quick solutions, the best one first
_QUICK_STEPS = 24_000  # nodes that are walked over for one of these
_ALONG, _AGAINST = 1 / 1024, 1024  # what storages count for that a plan drops, or keeps
_STEPS = 50_000  # nodes that are walked over to improve a schedule
_MOST_TRIALS = 24
_NONE: Mapping[int, float] = MappingProxyType({})


def solve_quickly(problem: WholeProblem, limit_bytes: int) -> Schedule:
    """The schedule with the least work that a few walks found, of long programs one; the one with the lowest peak where
    none fits.
    """
    return Quick(problem, limit_bytes).best[0]


class Quick:
    """What a few walks find under a limit: walked as far as it is asked for."""

    def __init__(
        self,
        problem: WholeProblem,
        limit_bytes: int,
        walker: Walker | None = None,
        weights: tuple[float, ...] | None = None,
    ) -> None:
        """walker: of the problem. weights: exponents in the order in which they are tried, of long programs not all."""
        self._problem = problem
        self.walker = walker or Walker(problem)
        self.limit_bytes = limit_bytes
        self._weights = (QUICK if weights is None else weights)[: quick_walks(problem)]
        self._walked: dict[float, Schedule] = {}

    @cached_property
    def best(self) -> tuple[Schedule, float | None]:
        """See `solve_quickly`; and the share of the time of transfers that counted for it."""
        problem, limit, best, share = self._problem, self.limit_bytes, None, None
        for weight in self._weights:
            found = self._walked.get(weight) or self.walker.walk(limit, weight, _NONE, most=_most_of(best, limit))
            if found is not None and (best is None or _order(found, limit) < _order(best, limit)):
                best = found
        assert best is not None, "the first walk is not given up"
        if problem.writes and (best.work or best.peak_bytes > limit):
            for other, weight in product(_SHARES, self._weights):
                found = self.walker.walk(limit, weight, _NONE, other)
                if found is not None and _order(found, limit) < _order(best, limit):
                    best, share = found, other
        return best, share

    def keeps(self, most_work: float = NEVER, walks: int = len(QUICK)) -> bool:
        """Whether the best one keeps the limit, with no more work than that. walks: that are asked at most."""
        if self._problem.writes or "best" in vars(self):
            return self.best[0].peak_bytes <= self.limit_bytes and self.best[0].work <= most_work
        for weight in self._weights[:walks]:
            found = self._walked.get(weight)
            if found is None:
                found = self.walker.walk(self.limit_bytes, weight, _NONE, most=Most(self.limit_bytes, most_work))
            if found is not None:
                self._walked[weight] = found
                if found.peak_bytes <= self.limit_bytes and found.work <= most_work:
                    return True
        return False


def solve_whole(
    problem: WholeProblem,
    limit_bytes: int,
    most_states: int = MOST_STATES,
    *,
    at_least: int = 0,
    at_most: float = NEVER,
    quick: Quick | None = None,
) -> Schedule:
    """The schedule with the least work that was found under a limit; the one with the lowest peak where none fits.

    It says how little work a better one could need; no less than its own where it is the best. most_states: of the
    search for the best one. at_least: schedules with less work are not looked for. at_most: where every schedule needs
    more work, any is given. quick: what is known under this limit.
    """
    return _Solver(problem, limit_bytes, at_least, at_most, quick or Quick(problem, limit_bytes)).schedule(most_states)


def quick_walks(problem: WholeProblem) -> int:
    """How many exponents are tried for a quick solution."""
    return max(1, min(len(QUICK), _QUICK_STEPS // max(1, len(problem.reads))))


def _order(schedule: Schedule, limit_bytes: int) -> tuple[int, int]:
    return max(schedule.peak_bytes, limit_bytes), schedule.work


def _most_of(best: Schedule | None, limit_bytes: int) -> Most:
    """What schedules need that are no worse."""
    if best is None:
        return NO_MOST
    fits = best.peak_bytes <= limit_bytes
    return Most(limit_bytes, best.work) if fits else Most(best.peak_bytes, NEVER)


class _Solver:
    """best: with what its storages counted for, and the exponent."""

    def __init__(self, problem: WholeProblem, limit: int, at_least: int, at_most: float, quick: Quick) -> None:
        self.problem = problem
        self.limit = limit
        self.at_least = at_least
        self.at_most = at_most
        self.walk = quick.walker.walk
        self.best, self.share = quick.best
        self.counts: Mapping[int, float] = _NONE
        self.weight = _WEIGHTS[0]

    def schedule(self, most_states: int) -> Schedule:
        """The best one found."""
        if not self.best.work and self.best.peak_bytes <= self.limit:
            return schedule_of(self.problem, self.best.runs)
        if self.problem.writes:
            self._improve(0)
            return schedule_of(self.problem, self.best.runs)
        exact = search_best(self.problem, self.limit, schedule_of(self.problem, self.best.runs), most_states)
        if exact is not None:
            return exact
        bound = self._bound()
        if bound.least_work > self.at_most:
            return replace(schedule_of(self.problem, self.best.runs), least_work=bound.least_work)
        for plan in bound.plans:
            self._try_plan(plan)
        self._improve(bound.least_work)
        self.best = schedule_of(self.problem, self.best.runs)
        fits = self.best.peak_bytes <= self.limit
        return replace(self.best, least_work=min(bound.least_work, self.best.work) if fits else bound.least_work)

    def _bound(self) -> Bound:
        if self.limit < lowest_peak(self.problem):
            return Bound(NEVER)
        live = live_bytes(self.problem)
        return bound_work(self.problem, self.limit, Position(self.problem, live.index(max(live))))

    def _try_plan(self, plan: Plan) -> None:
        counts = dict.fromkeys(plan.keep, float(_AGAINST)) | dict.fromkeys(plan.drop, _ALONG)
        for weight in _WEIGHTS:
            self._try(weight, counts)

    def _try(self, weight: float, counts: Mapping[int, float]) -> None:
        found = self.walk(self.limit, weight, counts, self.share, _most_of(self.best, self.limit))
        if found is None:
            return
        if found.work >= self.at_least and _order(found, self.limit) <= _order(self.best, self.limit):
            self.best, self.weight, self.counts = found, weight, counts

    def _improve(self, least_work: int) -> None:
        """Walk again with storages that count for more or less."""
        drawn = random.Random(0)
        droppable = [storage for storage, can in enumerate(self.problem.can_drop) if can]
        for _ in range(min(_MOST_TRIALS, _STEPS // max(1, len(self.problem.reads)))):
            if self.best.peak_bytes <= self.limit and self.best.work <= max(least_work, self.at_least):
                return
            counts, weight = dict(self.counts), self.weight
            again = list(runs_again(self.best))
            kind = drawn.random()
            if kind < 0.5 and again:
                costs = [1 + self.problem.costs[run.node] for run in again]
                for run in drawn.choices(again, costs, k=drawn.choice((1, 1, 2, 4))):
                    counts.update({s: counts.get(s, 1.0) * drawn.choice((2, 8)) for s in run.makes})
            elif kind < 0.85 and droppable:
                for storage in drawn.sample(droppable, max(1, len(droppable) // 10)):
                    counts[storage] = counts.get(storage, 1.0) * drawn.choice((0.25, 0.5, 2, 4))
            elif kind < 0.95:
                weight = drawn.choice((0.0, 0.1, 0.25, 0.5, 0.75, 1.0))
            else:
                for storage in drawn.sample(sorted(counts), len(counts) // 2):
                    del counts[storage]
            self._try(weight, counts)


def runs_again(schedule: Schedule) -> Iterator[Run]:
    """The runs that are not the first of their node."""
    done = 0
    for run in schedule.runs:
        if isinstance(run, Move):
            continue
        if run.node < done:
            yield run
        else:
            done += 1
