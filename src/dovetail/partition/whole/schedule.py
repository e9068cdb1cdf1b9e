"""What a schedule is, and what it takes: the order in which nodes run, some of them more than once.

Contents may leave for a file and come back in between. Memory is in use until they have left, and from when they begin
to come. Transfers go on while nodes run, one at a time, the one first that is waited for first; the time in which
nothing runs, because what is waited for is not there, counts as work.

Memory is counted as the solvers count it. The first time, results lie where the problem says (`places`), later in
memory of their own. What nobody reads before it is made again, or to the end, is free at once; results of a node that
runs again for another one of its results are there while it runs. `expected_peak` allows for one thing more: what is
written over an operand the first time is written over what stands for that, if nobody reads it later.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import NamedTuple, TypeAlias

from dovetail.partition.whole.problem import NEVER, WholeProblem


class Run(NamedTuple):
    """A node, and the storages that its results are from now on."""

    node: int
    makes: tuple[int, ...]


class Way(enum.Enum):
    """What happens to contents: see `ops.transfers`."""

    SPILL = "spill"
    SPILLED = "spilled"
    FETCH = "fetch"
    FETCHED = "fetched"


class Move(NamedTuple):
    """The contents of a storage begin to leave, have left, begin to come back, or are back."""

    way: Way
    storage: int


Act: TypeAlias = Run | Move


@dataclass(frozen=True, slots=True)
class Schedule:
    """runs: in order; the second time a node is there, it runs again. Moves of contents stand between them.

    peak_bytes: of live storages that the program makes, scratch included. work: of what runs again, and `waiting`, for
    contents. least_work: no schedule with a peak below the limit that it was made for needs less, as the problem
    counts; `NEVER` where none is; 0 where that is not known.
    """

    runs: tuple[Act, ...]
    peak_bytes: int
    work: int
    least_work: int = 0
    waiting: int = 0

    @property
    def is_best(self) -> bool:
        """Whether none with less work keeps the limit that it was made for."""
        return self.least_work == self.work


def schedule_of(problem: WholeProblem, runs: Sequence[Act]) -> Schedule:
    """The schedule of these runs."""
    done = work = 0
    for run in runs:
        if isinstance(run, Run):
            if run.node < done:
                work += problem.costs[run.node]
            else:
                done += 1
    waiting = waiting_of(problem, runs) if problem.writes else 0
    return Schedule(tuple(runs), max(live_during(problem, runs), default=0), work + waiting, waiting=waiting)


def expected_peak(problem: WholeProblem, runs: Sequence[Act]) -> int:
    """The peak of the program that these runs make, once it works in place."""
    return max(_live_bytes(problem, runs, _lives(problem, runs, in_place=True)), default=0)


def live_during(problem: WholeProblem, runs: Sequence[Act]) -> list[int]:
    """Bytes that are live during each run, scratch included."""
    return _live_bytes(problem, runs, _lives(problem, runs))


def _live_bytes(problem: WholeProblem, runs: Sequence[Act], lives: Sequence[_Life]) -> list[int]:
    born: list[list[_Life]] = [[] for _ in runs]
    dying: list[list[_Life]] = [[] for _ in runs]
    for life in lives:
        born[life.first].append(life)
        if life.last < len(runs):
            dying[life.last].append(life)
    in_use: dict[tuple[int, int], int] = {}
    live, found = 0, list[int]()
    for at, run in enumerate(runs):
        for life in born[at]:
            if life.memory not in in_use:
                in_use[life.memory] = 0
                live += life.size_bytes
            in_use[life.memory] += 1
        found.append(live + (problem.scratch[run.node] if isinstance(run, Run) else 0))
        for life in dying[at]:
            in_use[life.memory] -= 1
            if not in_use[life.memory]:
                del in_use[life.memory]
                live -= life.size_bytes
    return found


def waiting_of(problem: WholeProblem, runs: Sequence[Act]) -> int:
    """The work in whose time nothing runs, because contents are under way that are needed."""
    channel, now, busy = _Channel(), 0, 0
    ends: dict[int, list[int]] = {}
    for at, run in enumerate(runs):
        if isinstance(run, Move) and run.way in (Way.SPILLED, Way.FETCHED):
            ends.setdefault(run.storage, []).append(at)
    for at, run in enumerate(runs):
        if isinstance(run, Run):
            now, busy = now + problem.costs[run.node], busy + problem.costs[run.node]
        elif run.way in (Way.SPILLED, Way.FETCHED):
            now = channel.wait(at, now)
        else:
            end = next(end for end in ends[run.storage] if end > at)
            cost = problem.writes[run.storage] if run.way is Way.SPILL else problem.fetches[run.storage]
            channel.begin(end, cost, now)
    return now - busy


class _Channel:
    """Transfers one at a time, the one first that is waited for first."""

    def __init__(self) -> None:
        self._clock = 0
        self._left: list[tuple[int, int]] = []  # when each is waited for, and the work in whose time it is done
        self._done: dict[int, int] = {}

    def begin(self, end: int, cost: int, now: int) -> None:
        """Begin a transfer."""
        self._go_on(now)
        self._clock = max(self._clock, now) if not self._left else self._clock
        heappush(self._left, (end, cost))

    def wait(self, end: int, now: int) -> int:
        """When a transfer is done that is waited for now, or now if it is."""
        self._go_on(now)
        while end not in self._done:
            self._go_on(self._clock + self._left[0][1])
        return max(now, self._done.pop(end))

    def _go_on(self, until: int) -> None:
        while self._left and self._clock < until:
            end, left = heappop(self._left)
            spent = min(left, until - self._clock)
            self._clock += spent
            if spent == left:
                self._done[end] = self._clock
            else:
                heappush(self._left, (end, left - spent))


@dataclass(slots=True)
class _Life:
    """A storage between two times that it is made. memory: the place, or the storage and the run of its own."""

    memory: tuple[int, int]
    size_bytes: int
    first: int
    last: int


def _lives(problem: WholeProblem, runs: Sequence[Act], *, in_place: bool = False) -> list[_Life]:
    """Of all storages that lie in memory which the program makes. in_place: see `expected_peak`."""
    lives: list[_Life] = []
    now: dict[int, _Life] = {}
    written: list[tuple[_Life, list[_Life]]] = []  # what may be written over others, if these end then
    done = 0
    for at, run in enumerate(runs):
        if isinstance(run, Move):
            if run.way is Way.FETCH:
                now[run.storage] = _Life((at, run.storage), problem.sizes[run.storage], at, at)
                lives.append(now[run.storage])
            now[run.storage].last = max(now[run.storage].last, at)
            continue
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
            if in_place and place >= 0:
                over = [now[r] for r in problem.reads[run.node] if problem.places[r] == place and r != storage]
                written += [(life, over)] if over else []
            if storage in run.makes:
                now[storage] = life
    for life, over in written:
        ending = [one for one in over if one.last == life.first and one.size_bytes == life.size_bytes]
        if ending and all(one.memory != life.memory for one in over):
            life.memory = ending[0].memory
    return lives
