"""Fit a program under a limit: drop values that are cheap to compute again and not needed for long.

The program is walked in its order with a count of live bytes. Where a node would need more than the limit, values are
dropped, those first whose *price* is lowest: the work of making them again, for each byte and position until their
next use. A dropped value is made again right before the node that needs it, and then stays, so that chains that several
nodes need are made once. Some exponents are tried for the time to the next use, and the schedule with the least work is
taken; it is not proved to be the best one.

Source: Kirisame et al., "Dynamic tensor rematerialization" (ICLR 2021), with the future known, so that the time to the
        next use takes the place of staleness (Belady, "A study of replacement algorithms for a virtual-storage
        computer", 1966).
Cost:   O(nodes + operands + drops log drops), and what chains of dropped values cost to follow.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import NamedTuple

from dovetail.partition.whole.problem import NEVER, WholeProblem

_LONGEST_CHAIN = 200  # nodes that are followed to find what it costs to make a value again
_WEIGHTS = (0.5, 0.25, 0.0)  # what the time to the next use counts for, as an exponent
_MOST_WORK = 3  # times the work of the program: a run that needs more is given up


class Run(NamedTuple):
    """A node, and the storages that its results are from now on."""

    node: int
    makes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Schedule:
    """runs: in order; the second time a node is there, it runs again.

    peak_bytes: of live storages that the program makes, scratch included. work: of what runs again.
    """

    runs: tuple[Run, ...]
    peak_bytes: int
    work: int


def solve_whole(problem: WholeProblem, limit_bytes: int) -> Schedule:
    """The schedule with the least work that was found under a limit; the one with the lowest peak where none fits."""
    found = [_Walk(problem, limit_bytes, weight).schedule() for weight in _WEIGHTS]
    return min(found, key=lambda s: (max(s.peak_bytes, limit_bytes), s.work))


class _Walk:
    def __init__(self, problem: WholeProblem, limit: int, weight: float) -> None:
        self.problem = problem
        self.limit = limit
        self.weight = weight
        self.held: dict[int, int] = {}  # in which memory each storage is
        self.in_use: dict[int, int] = {}  # how many storages are in it; memory of its own has numbers below -1
        self.live = self.peak = self.work = 0
        self.most_work = _MOST_WORK * problem.work
        self.runs: list[Run] = []
        self.heap: list[tuple[float, int]] = []

    def schedule(self) -> Schedule:
        """Walk the program."""
        problem = self.problem
        for at, reads in enumerate(problem.reads):
            if self.work > self.most_work:
                self.limit = NEVER  # it does not fit
            self._make(reads, at)
            self._run(at, at, set(reads))
            for storage in (*reads, *problem.makes[at]):
                if problem.ends[storage] <= at:
                    self._let_go(storage)
        return Schedule(tuple(self.runs), self.peak, self.work)

    # --- memory

    def _bytes(self, memory: int) -> int:
        return self.problem.sizes[memory if memory >= 0 else -2 - memory]

    def _hold(self, storage: int, memory: int) -> None:
        self.held[storage] = memory
        if memory == -1:
            return
        if memory not in self.in_use:
            self.in_use[memory] = 0
            self.live += self._bytes(memory)
        self.in_use[memory] += 1

    def _let_go(self, storage: int) -> int:
        """Drop a storage, and say how many bytes are free now."""
        memory = self.held.pop(storage, -1)
        if memory == -1:
            return 0
        self.in_use[memory] -= 1
        if self.in_use[memory]:
            return 0
        del self.in_use[memory]
        self.live -= self._bytes(memory)
        return self._bytes(memory)

    def _run(self, node: int, at: int, locked: Collection[int], *, again: bool = False) -> None:
        problem = self.problem
        made = problem.makes[node]
        fresh = [storage for storage in made if storage not in self.held]
        places = {storage: -2 - storage if again else problem.places[storage] for storage in made}
        new = {place for place in places.values() if place != -1 and (again or place not in self.in_use)}
        need = sum([self._bytes(place) for place in new]) + problem.scratch[node]
        if self.live + need > self.limit:
            self._drop(self.live + need - self.limit, at, locked)
        self.peak = max(self.peak, self.live + need)
        for storage in fresh:
            self._hold(storage, places[storage])
        self.runs.append(Run(node, tuple(fresh)))
        if again:
            self.work += problem.costs[node]
        for storage in fresh:
            if problem.can_drop[storage] and problem.sizes[storage] and places[storage] != -1:
                heappush(self.heap, (self._price(storage, at), storage))

    # --- making again

    def _make(self, storages: Iterable[int], at: int) -> None:
        """Have these storages, which a node at some position needs."""
        problem = self.problem
        wanted = set(storages)
        stack = [storage for storage in wanted if storage not in self.held]
        waiting: dict[int, tuple[int, ...]] = {}  # for what is to be made: what its maker reads
        while stack:
            storage = stack[-1]
            if storage in self.held:
                stack.pop()
                waiting.pop(storage, None)
                continue
            maker = problem.makers[storage]
            waiting[storage] = problem.reads[maker]
            missing = [read for read in problem.reads[maker] if read not in self.held]
            if missing:
                stack += missing
                continue
            self._run(maker, at, wanted.union(*waiting.values()), again=True)

    # --- dropping

    def _drop(self, wanted: int, at: int, locked: Collection[int]) -> None:
        """Drop storages of so many bytes, the cheapest first, as far as there are any."""
        aside: list[tuple[float, int]] = []
        while wanted > 0 and self.heap:
            price, storage = heappop(self.heap)
            if storage not in self.held:
                continue
            if storage in locked:
                aside.append((price, storage))
                continue
            now = self._price(storage, at)
            if self.heap and now > price and now > self.heap[0][0]:
                heappush(self.heap, (now, storage))
                continue
            wanted -= self._let_go(storage)
        for entry in aside:
            heappush(self.heap, entry)

    def _price(self, storage: int, at: int) -> float:
        """What it costs to make a storage again, for each byte, the less the longer it is not used."""
        problem = self.problem
        uses = problem.uses[storage]
        place = bisect_left(uses, at + 1)
        if place == len(uses):
            return 0.0  # it was only made for another one
        gap = uses[place] - at
        return float(self._cost(storage) / problem.sizes[storage] / gap**self.weight)

    def _cost(self, storage: int) -> int:
        """The work of all nodes that would run to make a storage again, given what is there."""
        problem = self.problem
        stack = [problem.makers[storage]]
        seen = set(stack)
        cost = 0
        while stack and len(seen) < _LONGEST_CHAIN:
            node = stack.pop()
            cost += problem.costs[node]
            for read in problem.reads[node]:
                maker = problem.makers[read]
                if read not in self.held and maker not in seen:
                    seen.add(maker)
                    stack.append(maker)
        return cost
