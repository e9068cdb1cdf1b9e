"""Choose a schedule: the one with the least work under a limit, or the one with the lowest peak that costs little.

The solver knows memory as the functional program uses it, with a guess of what works in place. So the limits that it is
given are rungs of a ladder between what one node needs and what the program needs as it is, and what counts is the peak
of the program that comes of it, as it will run.

A lower limit never gets a higher peak, nor less work. The rungs are a tree that is searched by halves, and the limit
only says where the search goes. Each rung has a *point*, a peak and a work, between the points of the rungs that the
search came by: a schedule whose peak or work is not between theirs counts as the one whose bounds it leaves. So points
do not depend on the limit, and along the rungs peaks only rise and works only fall. Between the two points that a
search ends with there is room for one more, that of a schedule that was looked for longer.

Below all rungs are schedules for the lowest limits that the solver keeps, the one with the least work of them always,
and the others for limits that it does not keep.

Only schedules and numbers are kept of the programs that are weighed.

Cost: up to twelve times that of the quick solver, that of the other one twice, and ten times that of re-inplacing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from dovetail.partition.choose import work_to_spare
from dovetail.partition.whole.bounds import lowest_peak
from dovetail.partition.whole.problem import NEVER, WholeProblem
from dovetail.partition.whole.schedule import Act, Schedule
from dovetail.partition.whole.solve import Quick, solve_whole

_MOST_RUNGS, _LEAST_RUNGS = 64, 8
_STEPS = 300_000  # nodes on all rungs, above which there are fewer rungs
_LOWEST = 3  # rungs at the lower end that are looked at for the lowest peak
_FEW_STORAGES = 12  # so many that may be dropped make a problem that is searched for the best at each rung
_FEW_STATES = 40  # of that search
_FURTHER = 3  # rungs below the one that was found which better schedules may reach


@dataclass(frozen=True, slots=True)
class Weighed:
    """A schedule, and the peak of the program that it makes, as it will run."""

    schedule: Schedule
    peak_bytes: int

    @property
    def work(self) -> int:
        """Of what runs again, and of what is waited for."""
        return self.schedule.work


@dataclass(frozen=True, slots=True)
class Choice:
    """chosen: None where the limit cannot be kept. lowest: the one with the lowest peak that was found then."""

    chosen: Weighed | None
    lowest: Weighed | None = None

    @property
    def floor_bytes(self) -> int:
        """The lowest peak that was found."""
        return 0 if self.lowest is None else self.lowest.peak_bytes


class Ladder:
    """The schedules of one program. weigh: the peak of the program that a schedule makes, as it will run."""

    def __init__(self, problem: WholeProblem, peak_bytes: int, weigh: Callable[[Schedule], int]) -> None:
        """peak_bytes: of the program as it is."""
        self.problem = problem
        self.peak_bytes = peak_bytes
        self._weigh = weigh
        self._low = min(largest_node(problem), peak_bytes)
        self._rungs = rungs_for(len(problem.reads))
        self._is_small = sum(problem.can_drop) <= _FEW_STORAGES
        self._schedules: dict[int, Schedule] = {}
        self._quick_ones: dict[int, Quick] = {}
        self._peaks: dict[tuple[Act, ...], int] = {}
        self._lowest_ones: tuple[Weighed, ...] = ()
        self._least = 0 if problem.writes else lowest_peak(problem)

    def frugal(self) -> Weighed | None:
        """The lowest peak for two percent of work at most; None where none is lower."""
        most = work_to_spare(self.problem.work)
        rung = self._lowest(lambda k: self._fits(k, most))
        if rung is None:
            return None
        found = [self._at(rung)]
        for lower in range(rung, max(-1, rung - _FURTHER), -1):
            schedule = solve_whole(self.problem, self._budget(lower), at_most=most, quick=self._quick(lower))
            if schedule.peak_bytes > self._budget(lower) or schedule.work > most:
                break
            found.append(self._of(schedule))
        best = min(found, key=lambda weighed: (weighed.peak_bytes, weighed.work))
        return best if best.peak_bytes < self.peak_bytes else None

    def under(self, limit_bytes: int) -> Choice:
        """The least work for a peak below a limit, which the program as it is does not keep."""
        first = self._first()
        if first.peak_bytes > limit_bytes:
            lowest = self._lowest_points()
            fits = [weighed for weighed in lowest if weighed.peak_bytes <= limit_bytes]
            best = min(fits, key=lambda weighed: (weighed.work, weighed.peak_bytes), default=None)
            return Choice(best, min([first, *lowest], key=lambda weighed: (weighed.peak_bytes, weighed.work)))
        below, above = first, None
        low, high = self._bottom + 1, self._rungs
        while low < high:  # the highest rung whose peak is low enough is below `high`
            middle = (low + high) // 2
            point = self._point(self._at(middle), below, above)
            if point is not None and point.peak_bytes <= limit_bytes:
                low, below = middle + 1, point
            else:
                high, above = middle, point
        return Choice(self._between(below, above, limit_bytes))

    def keeps(self, limit_bytes: int) -> bool:
        """Whether there is a schedule under a limit. Looks at no more schedules than that asks for."""
        known = [self.peak_bytes, self._first().peak_bytes]
        return min(known) <= limit_bytes or self.floor_bytes() <= limit_bytes

    def floor_bytes(self) -> int:
        """The lowest peak that is found."""
        return min([weighed.peak_bytes for weighed in (self._first(), *self._lowest_points())])

    def curve(self, halvings: int) -> tuple[Weighed, ...]:
        """Points that limits get, the lowest peak first; each needs less work than those of lower peaks.

        halvings: how often the rungs are halved; each time there are twice as many points.
        """
        first = self._first()
        low = [weighed for weighed in self._lowest_points() if weighed.peak_bytes < first.peak_bytes]
        points = [*low, first, *self._inner(self._bottom + 1, self._rungs, first, None, halvings)]
        best: list[Weighed] = []
        for weighed in sorted(points, key=lambda w: (w.peak_bytes, w.work)):
            if weighed.peak_bytes < self.peak_bytes and (not best or weighed.work < best[-1].work):
                best.append(weighed)
        return tuple(best)

    def _inner(self, low: int, high: int, below: Weighed, above: Weighed | None, halvings: int) -> Iterator[Weighed]:
        """The points between two others, in order."""
        if not halvings or low >= high:
            return
        middle = (low + high) // 2
        point = self._point(self._at(middle), below, above)
        yield from self._inner(low, middle, below, point, halvings - 1)
        if point is not None:
            yield point
            yield from self._inner(middle + 1, high, point, above, halvings - 1)

    # --- points ---------------------------------------------------------------------------------------------------

    def _point(self, found: Weighed, below: Weighed, above: Weighed | None) -> Weighed | None:
        """A schedule, or the one of those below and above whose bounds it leaves. None: the program as it is."""
        peak, work = (self.peak_bytes, 0) if above is None else (above.peak_bytes, above.work)
        if found.peak_bytes < below.peak_bytes or found.work > below.work:
            return below
        return above if found.peak_bytes >= peak or found.work < work else found

    def _between(self, below: Weighed, above: Weighed | None, limit_bytes: int) -> Weighed:
        """The point below, or one with less work that was looked for longer. above: the next one; None: the last."""
        peak, work = (self.peak_bytes, 0) if above is None else (above.peak_bytes, above.work)
        budget = below.schedule.peak_bytes + min(peak - below.peak_bytes, self._budget(1) - self._budget(0)) // 2
        schedule = solve_whole(self.problem, budget, at_least=work)
        if work <= schedule.work < below.work and schedule.peak_bytes <= budget:
            found = self._of(schedule)
            if below.peak_bytes <= found.peak_bytes <= limit_bytes:
                return found if found.peak_bytes < peak else below
        least = min(schedule.least_work, below.work)
        return Weighed(replace(below.schedule, least_work=least), below.peak_bytes)

    # --- schedules ------------------------------------------------------------------------------------------------

    @cached_property
    def _bottom(self) -> int:
        """The highest of the rungs that are looked at for the lowest peak."""
        return min((self._lowest(self._fits) or 0) + _LOWEST, self._rungs) - 1

    def _first(self) -> Weighed:
        """The schedule with the least work of those for the lowest limits."""
        rungs = range(max(0, self._bottom - _LOWEST + 1), self._bottom + 1)
        return self._of(min([self._schedule(rung) for rung in rungs], key=lambda s: (s.work, s.peak_bytes)))

    def _lowest_points(self) -> tuple[Weighed, ...]:
        """Schedules for the lowest limits; none needs less work than the first one."""
        if not self._lowest_ones:
            bottom, first = self._bottom, self._first()
            lowest = max(0, bottom - _LOWEST + 1)
            looked_for = solve_whole(self.problem, self._budget(max(0, lowest - 1)), at_least=first.work)
            found = [*(self._schedule(rung) for rung in range(lowest, bottom + 1)), looked_for]
            self._lowest_ones = tuple([self._of(schedule) for schedule in found if schedule.work >= first.work])
        return self._lowest_ones

    def _budget(self, rung: int) -> int:
        return self._low + (self.peak_bytes - self._low) * rung // self._rungs

    def _quick(self, rung: int) -> Quick:
        if rung not in self._quick_ones:
            self._quick_ones[rung] = Quick(self.problem, self._budget(rung))
        return self._quick_ones[rung]

    def _schedule(self, rung: int) -> Schedule:
        if not self._is_small:
            return self._quick(rung).best[0]
        if rung not in self._schedules:
            self._schedules[rung] = solve_whole(self.problem, self._budget(rung), _FEW_STATES, quick=self._quick(rung))
        return self._schedules[rung]

    def _fits(self, rung: int, most_work: float = NEVER) -> bool:
        """Whether a rung's schedule keeps its limit, with no more work than that."""
        if self._budget(rung) < self._least:
            return False  # none does
        if not self._is_small:
            return self._quick(rung).keeps(most_work)
        schedule = self._schedule(rung)
        return schedule.peak_bytes <= self._budget(rung) and schedule.work <= most_work

    def _lowest(self, is_good: Callable[[int], bool]) -> int | None:
        """The lowest rung of which something is true that is true of those above."""
        low, high = 0, self._rungs
        while low < high:
            middle = (low + high) // 2
            if is_good(middle):
                high = middle
            else:
                low = middle + 1
        return low if low < self._rungs else None

    def _at(self, rung: int) -> Weighed:
        return self._of(self._schedule(rung))

    def _of(self, schedule: Schedule) -> Weighed:
        """A schedule with its peak, which is found once for the same runs."""
        if schedule.runs not in self._peaks:
            self._peaks[schedule.runs] = self._weigh(schedule)
        return Weighed(schedule, self._peaks[schedule.runs])


def rungs_for(nodes: int) -> int:
    """How many rungs there are for a program: fewer for long ones, so that a search weighs fewer of them."""
    rungs = _MOST_RUNGS
    while rungs > _LEAST_RUNGS and nodes * rungs > _STEPS:
        rungs //= 2
    return rungs


def largest_node(problem: WholeProblem) -> int:
    """Bytes of the operands and results of the node that has most of them, scratch included."""
    found = 0
    for reads, makes, scratch in zip(problem.reads, problem.makes, problem.scratch, strict=True):
        places = {problem.places[storage] for storage in (*reads, *makes)} - {-1}
        found = max(found, scratch + sum([problem.sizes[place] for place in places]))
    return found
