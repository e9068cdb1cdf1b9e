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

To weigh a long program takes long. So there the rungs are searched by the peaks that are expected, and only what is
found is weighed. If its peak is another one, the rungs are searched again by peaks that are weighed.

Only schedules and numbers are kept of the programs that are weighed.

Cost: up to twelve times that of the quick solver, that of the other one twice, and ten times that of re-inplacing; of
long programs once or twice that of re-inplacing where peaks are those that are expected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from dovetail.partition.whole.bounds import live_bytes
from dovetail.partition.whole.problem import WholeProblem
from dovetail.partition.whole.rungs import LONG, LOWEST, Rungs, rungs_for
from dovetail.partition.whole.schedule import Act, Schedule, expected_peak

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
        rungs = Rungs(problem, peak_bytes, rungs_for(len(problem.reads), is_weighed=True))
        self._weighed, self._expected = _Curve(rungs, peak_bytes, weigh), None
        if len(problem.reads) >= LONG and not problem.writes and max(live_bytes(problem)) == peak_bytes:
            count = rungs_for(len(problem.reads), is_weighed=False)
            more = rungs if rungs.count == count else Rungs(problem, peak_bytes, count)
            self._expected = _Curve(more, peak_bytes, lambda schedule: expected_peak(problem, schedule.runs))

    def frugal(self, most_work: float) -> Weighed | None:
        """The lowest peak for so much work at most; None where none is lower."""
        found = None if self._expected is None else self._expected.frugal(most_work)
        return found if found is not None and self._is_as_expected(found) else self._weighed.frugal(most_work)

    def under(self, limit_bytes: int) -> Choice:
        """The least work for a peak below a limit, which the program as it is does not keep."""
        if self._expected is None:
            return self._weighed.under(limit_bytes)
        found = self._expected.under(limit_bytes).chosen
        if found is not None:
            choice = Choice(found) if self._is_as_expected(found) else self._weighed.under(limit_bytes)
            if choice.chosen is not None:
                return choice
        return _lowest_of(self._lowest_ones, limit_bytes)

    def keeps(self, limit_bytes: int) -> bool:
        """Whether there is a schedule under a limit. Looks at no more schedules than that asks for."""
        if self._expected is None:
            return self._weighed.keeps(limit_bytes)
        return self.peak_bytes <= limit_bytes or self.floor_bytes() <= limit_bytes

    def floor_bytes(self) -> int:
        """The lowest peak that is found."""
        return min([weighed.peak_bytes for weighed in self._lowest_ones])

    @cached_property
    def _lowest_ones(self) -> tuple[Weighed, ...]:
        """Schedules for the lowest limits, all of them weighed."""
        curve = self._expected or self._weighed
        return tuple([self._weighed.of(weighed.schedule) for weighed in curve.lowest_ones()])

    def curve(self, halvings: int) -> tuple[Weighed, ...]:
        """Points that limits get, the lowest peak first; each needs less work than those of lower peaks.

        halvings: how often the rungs are halved; each time there are twice as many points.
        """
        found = () if self._expected is None else self._expected.curve(halvings)
        return found if found and all(map(self._is_as_expected, found)) else self._weighed.curve(halvings)

    def _is_as_expected(self, found: Weighed) -> bool:
        return self._weighed.of(found.schedule).peak_bytes == found.peak_bytes


class _Curve:
    """The points of the rungs. peak_of: what counts as the peak of a schedule, asked for once for the same runs."""

    def __init__(self, rungs: Rungs, peak_bytes: int, peak_of: Callable[[Schedule], int]) -> None:
        """peak_bytes: of the program as it is."""
        self.peak_bytes = peak_bytes
        self._rungs = rungs
        self._peak_of = peak_of
        self._peaks: dict[tuple[Act, ...], int] = {}
        self._lowest_ones: tuple[Weighed, ...] = ()

    def frugal(self, most_work: float) -> Weighed | None:
        """The lowest peak for so much work at most; None where none is lower."""
        rung = self._rungs.lowest(lambda k: self._rungs.fits(k, most_work))
        if rung is None:
            return None
        found = [self._at(rung)]
        for lower in range(rung, max(-1, rung - _FURTHER), -1):
            schedule = self._rungs.searched(self._rungs.budget(lower), at_most=most_work)
            if schedule.peak_bytes > self._rungs.budget(lower) or schedule.work > most_work:
                break
            found.append(self.of(schedule))
        best = min(found, key=lambda weighed: (weighed.peak_bytes, weighed.work))
        return best if best.peak_bytes < self.peak_bytes else None

    def under(self, limit_bytes: int) -> Choice:
        """The least work for a peak below a limit, which the program as it is does not keep."""
        first = self._first()
        if first.peak_bytes > limit_bytes:
            return _lowest_of(self.lowest_ones(), limit_bytes)
        below, above = first, None
        low, high = self._rungs.bottom + 1, self._rungs.count
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
        return min(known) <= limit_bytes or min([one.peak_bytes for one in self.lowest_ones()]) <= limit_bytes

    def lowest_ones(self) -> tuple[Weighed, ...]:
        """Schedules for the lowest limits, the first point among them."""
        return (self._first(), *self._lowest_points())

    def curve(self, halvings: int) -> tuple[Weighed, ...]:
        """Points that limits get, the lowest peak first; each needs less work than those of lower peaks.

        halvings: how often the rungs are halved; each time there are twice as many points.
        """
        first = self._first()
        low = [weighed for weighed in self._lowest_points() if weighed.peak_bytes < first.peak_bytes]
        points = [*low, first, *self._inner(self._rungs.bottom + 1, self._rungs.count, first, None, halvings)]
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
        budget = (
            below.schedule.peak_bytes + min(peak - below.peak_bytes, self._rungs.budget(1) - self._rungs.budget(0)) // 2
        )
        schedule = self._rungs.searched(budget, at_least=work)
        if work <= schedule.work < below.work and schedule.peak_bytes <= budget:
            found = self.of(schedule)
            if below.peak_bytes <= found.peak_bytes <= limit_bytes:
                return found if found.peak_bytes < peak else below
        least = min(schedule.least_work, below.work)
        return Weighed(replace(below.schedule, least_work=least), below.peak_bytes)

    # --- schedules ------------------------------------------------------------------------------------------------

    def _first(self) -> Weighed:
        """The schedule with the least work of those for the lowest limits."""
        return self.of(self._rungs.first)

    def _lowest_points(self) -> tuple[Weighed, ...]:
        """Schedules for the lowest limits; none needs less work than the first one."""
        if not self._lowest_ones:
            bottom, first = self._rungs.bottom, self._first()
            lowest = max(0, bottom - LOWEST + 1)
            looked_for = self._rungs.searched(self._rungs.budget(max(0, lowest - 1)), at_least=first.work)
            found = [*(self._rungs.schedule(rung) for rung in range(lowest, bottom + 1)), looked_for]
            self._lowest_ones = tuple([self.of(schedule) for schedule in found if schedule.work >= first.work])
        return self._lowest_ones

    def _at(self, rung: int) -> Weighed:
        return self.of(self._rungs.schedule(rung))

    def of(self, schedule: Schedule) -> Weighed:
        """A schedule with its peak, which is found once for the same runs."""
        if schedule.runs not in self._peaks:
            self._peaks[schedule.runs] = self._peak_of(schedule)
        return Weighed(schedule, self._peaks[schedule.runs])


def _lowest_of(found: Sequence[Weighed], limit_bytes: int) -> Choice:
    """The one with the least work that keeps a limit; and the lowest one."""
    fits = [weighed for weighed in found if weighed.peak_bytes <= limit_bytes]
    best = min(fits, key=lambda weighed: (weighed.work, weighed.peak_bytes), default=None)
    return Choice(best, min(found, key=lambda weighed: (weighed.peak_bytes, weighed.work)))
