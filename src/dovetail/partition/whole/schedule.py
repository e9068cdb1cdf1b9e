"""What a schedule is, and what it takes: the order in which nodes run, some of them more than once.

Memory is counted as the solvers count it. The first time, results lie where the problem says (`places`), later in
memory of their own. What nobody reads before it is made again, or to the end, is free at once; results of a node that
runs again for another one of its results are there while it runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dovetail.partition.whole.problem import NEVER, WholeProblem


class Run(NamedTuple):
    """A node, and the storages that its results are from now on."""

    node: int
    makes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Schedule:
    """runs: in order; the second time a node is there, it runs again.

    peak_bytes: of live storages that the program makes, scratch included. work: of what runs again. least_work: no
    schedule with a peak below the limit that it was made for needs less, as the problem counts; `NEVER` where none is.
    """

    runs: tuple[Run, ...]
    peak_bytes: int
    work: int
    least_work: int = 0

    @property
    def is_best(self) -> bool:
        """Whether none with less work keeps the limit that it was made for."""
        return self.least_work == self.work


def schedule_of(problem: WholeProblem, runs: Sequence[Run]) -> Schedule:
    """The schedule of these runs."""
    lives = _lives(problem, runs)
    born: list[list[_Life]] = [[] for _ in runs]
    dying: list[list[_Life]] = [[] for _ in runs]
    for life in lives:
        born[life.first].append(life)
        if life.last < len(runs):
            dying[life.last].append(life)
    in_use: dict[tuple[int, int], int] = {}
    live = peak = work = 0
    for at, run in enumerate(runs):
        for life in born[at]:
            if life.memory not in in_use:
                in_use[life.memory] = 0
                live += life.size_bytes
            in_use[life.memory] += 1
        peak = max(peak, live + problem.scratch[run.node])
        for life in dying[at]:
            in_use[life.memory] -= 1
            if not in_use[life.memory]:
                del in_use[life.memory]
                live -= life.size_bytes
    done = 0
    for run in runs:
        if run.node < done:
            work += problem.costs[run.node]
        else:
            done += 1
    return Schedule(tuple(runs), peak, work)


@dataclass(slots=True)
class _Life:
    """A storage between two times that it is made. memory: the place, or the storage and the run of its own."""

    memory: tuple[int, int]
    size_bytes: int
    first: int
    last: int


def _lives(problem: WholeProblem, runs: Sequence[Run]) -> list[_Life]:
    """Of all storages that lie in memory which the program makes."""
    lives: list[_Life] = []
    now: dict[int, _Life] = {}
    done = 0
    for at, run in enumerate(runs):
        for read in problem.reads[run.node]:
            now[read].last = max(now[read].last, at)
        again = run.node < done
        done += not again
        for storage in problem.makes[run.node]:
            place = problem.places[storage]
            memory = (at, storage) if again else (-1, place)
            life = _Life(memory, problem.sizes[storage if again or place < 0 else place], at, at)
            if not again and problem.ends[storage] == NEVER:
                life.last = len(runs)
            if again or place >= 0:
                lives.append(life)
            if storage in run.makes:
                now[storage] = life
    return lives
