"""Choose a schedule: the one with the least work under a limit, or the one with the lowest peak that costs little.

The solver knows memory as the functional program uses it, with a guess of what works in place. So the limits that it is
given are rungs of a ladder between what one node needs and what the program needs as it is, and what counts is the peak
of the program that comes of it, as it will run. The ladder does not depend on the limit that is asked for: a lower
limit never gives a schedule of a higher rung.

Rungs are found with schedules that are quick to find, and the best one at the rung that was found is then looked for.

Cost: up to twelve times that of the quick solver, three times that of the other, and twelve times that of re-inplacing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from dovetail.partition.choose import work_to_spare
from dovetail.partition.whole.problem import WholeProblem
from dovetail.partition.whole.schedule import Schedule
from dovetail.partition.whole.solve import solve_quickly, solve_whole

_RUNGS = 64
_LOWEST = 3  # rungs at the lower end that are looked at for the lowest peak
_FURTHER = 3  # rungs below the one that was found which better schedules may reach


@dataclass(frozen=True, slots=True)
class Weighed:
    """A schedule, and the peak of the program that it makes, as it will run."""

    schedule: Schedule
    peak_bytes: int


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
        self._schedules: dict[int, Schedule] = {}
        self._weighed: dict[int, Weighed] = {}

    def frugal(self) -> Weighed | None:
        """The lowest peak for two percent of work at most; None where none is lower."""
        most = work_to_spare(self.problem.work)
        rung = self._lowest(lambda k: self._fits(k) and self._schedule(k).work <= most)
        if rung is None:
            return None
        found = [self._at(rung)]
        for lower in range(rung, max(-1, rung - _FURTHER), -1):
            schedule = solve_whole(self.problem, self._budget(lower))
            if schedule.peak_bytes > self._budget(lower) or schedule.work > most:
                break
            found.append(Weighed(schedule, self._weigh(schedule)))
        best = min(found, key=lambda weighed: (weighed.peak_bytes, weighed.schedule.work))
        return best if best.peak_bytes < self.peak_bytes else None

    def under(self, limit_bytes: int) -> Choice:
        """The least work for a peak below a limit, which the program as it is does not keep."""
        feasible = self._lowest(self._fits) or 0
        low, high = feasible, _RUNGS
        while low < high:  # the highest rung whose peak is low enough is below `high`
            middle = (low + high) // 2
            if self._at(middle).peak_bytes <= limit_bytes:
                low = middle + 1
            else:
                high = middle
        if low > feasible:
            return Choice(self._better(low - 1, limit_bytes))
        tried = [self._at(k) for k in range(feasible, min(feasible + _LOWEST, _RUNGS))]
        schedule = solve_whole(self.problem, self._budget(max(0, feasible - 1)))
        tried.append(Weighed(schedule, self._weigh(schedule)))
        lowest = min([*tried, *self._weighed.values()], key=lambda w: (w.peak_bytes, w.schedule.work))
        return Choice(lowest if lowest.peak_bytes <= limit_bytes else None, lowest)

    def curve(self, points: int) -> tuple[Weighed, ...]:
        """Schedules for so many limits at most, the lowest first; each needs less work than those of lower peaks."""
        feasible = self._lowest(self._fits) or 0
        every = max(1, -(-(_RUNGS - feasible) // points))
        found = [self._at(rung) for rung in range(feasible, _RUNGS, every)]
        best: list[Weighed] = []
        for weighed in sorted(found, key=lambda w: (w.peak_bytes, w.schedule.work)):
            if weighed.peak_bytes < self.peak_bytes and (not best or weighed.schedule.work < best[-1].schedule.work):
                best.append(weighed)
        return tuple(best)

    def _better(self, rung: int, limit_bytes: int) -> Weighed:
        """The schedule of a rung that keeps a limit, or one with less work that was looked for longer."""
        quick = self._at(rung)
        schedule = solve_whole(self.problem, self._budget(rung))
        if schedule.work < quick.schedule.work:
            found = Weighed(schedule, self._weigh(schedule))
            return found if found.peak_bytes <= limit_bytes else quick
        is_same = quick.schedule.peak_bytes <= self._budget(rung)
        known = replace(quick.schedule, least_work=min(schedule.least_work, quick.schedule.work)) if is_same else None
        return quick if known is None else Weighed(known, quick.peak_bytes)

    def _budget(self, rung: int) -> int:
        return self._low + (self.peak_bytes - self._low) * rung // _RUNGS

    def _schedule(self, rung: int) -> Schedule:
        if rung not in self._schedules:
            self._schedules[rung] = solve_quickly(self.problem, self._budget(rung))
        return self._schedules[rung]

    def _fits(self, rung: int) -> bool:
        return self._schedule(rung).peak_bytes <= self._budget(rung)

    def _lowest(self, is_good: Callable[[int], bool]) -> int | None:
        """The lowest rung of which something is true that is true of those above."""
        low, high = 0, _RUNGS
        while low < high:
            middle = (low + high) // 2
            if is_good(middle):
                high = middle
            else:
                low = middle + 1
        return low if low < _RUNGS else None

    def _at(self, rung: int) -> Weighed:
        if rung not in self._weighed:
            schedule = self._schedule(rung)
            self._weighed[rung] = Weighed(schedule, self._weigh(schedule))
        return self._weighed[rung]


def largest_node(problem: WholeProblem) -> int:
    """Bytes of the operands and results of the node that has most of them, scratch included."""
    found = 0
    for reads, makes, scratch in zip(problem.reads, problem.makes, problem.scratch, strict=True):
        places = {problem.places[storage] for storage in (*reads, *makes)} - {-1}
        found = max(found, scratch + sum([problem.sizes[place] for place in places]))
    return found
