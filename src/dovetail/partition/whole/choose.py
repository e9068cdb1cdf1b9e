"""Choose a schedule: the one with the least work under a limit, or the one with the lowest peak that costs little.

The solver knows memory as the functional program uses it, with a guess of what works in place. So the limits that it is
given are rungs of a ladder between what one node needs and what the program needs as it is, and what counts is the peak
of the program that comes of it, as it will run. The ladder does not depend on the limit that is asked for: a lower
limit never gives a schedule of a higher rung.

Cost: up to twelve times that of the solver, and nine times that of re-inplacing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dovetail.partition.choose import work_to_spare
from dovetail.partition.whole.problem import WholeProblem
from dovetail.partition.whole.solve import Schedule, solve_whole

_RUNGS = 64
_LOWEST = 3  # rungs at the lower end that are looked at for the lowest peak


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
        best = self._at(rung) if rung is not None else None
        return best if best is not None and best.peak_bytes < self.peak_bytes else None

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
            return Choice(self._at(low - 1))
        tried = [self._at(k) for k in range(feasible, min(feasible + _LOWEST, _RUNGS))]
        lowest = min([*tried, *self._weighed.values()], key=lambda w: (w.peak_bytes, w.schedule.work))
        return Choice(lowest if lowest.peak_bytes <= limit_bytes else None, lowest)

    def _budget(self, rung: int) -> int:
        return self._low + (self.peak_bytes - self._low) * rung // _RUNGS

    def _schedule(self, rung: int) -> Schedule:
        if rung not in self._schedules:
            self._schedules[rung] = solve_whole(self.problem, self._budget(rung))
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
