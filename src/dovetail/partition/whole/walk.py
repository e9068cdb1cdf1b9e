"""Fit a program under a limit: drop values that are cheap to compute again and not needed for long.

The program is walked in its order with a count of live bytes. Where a node would need more than the limit, values are
dropped, those first whose *price* is lowest: the work of making them again, for each byte and position until their
next use. A dropped value is made again right before the node that needs it, and then stays, so that chains that several
nodes need are made once. A solver may let storages count for more or less than they cost.

Source: Kirisame et al., "Dynamic tensor rematerialization" (ICLR 2021), with the future known, so that the time to the
        next use takes the place of staleness (Belady, "A study of replacement algorithms for a virtual-storage
        computer", 1966).
Cost:   O(nodes + operands + drops log drops), and what chains of dropped values cost to follow.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping
from heapq import heappop, heappush

from dovetail.partition.whole.problem import NEVER, WholeProblem
from dovetail.partition.whole.schedule import Run, Schedule

_LONGEST_CHAIN = 200  # nodes that are followed to find what it costs to make a value again
_MOST_WORK = 3  # times the work of the program: a run that needs more is given up
_MOST_RUNS = 100  # times the nodes of the program, as some nodes may count as no work


def walk(problem: WholeProblem, limit_bytes: int, weight: float, counts: Mapping[int, float]) -> Schedule:
    """The schedule that comes of dropping the cheapest storages where the limit is met.

    weight: an exponent, of the time to the next use. counts: factors of the prices of some storages.
    """
    return _Walk(problem, limit_bytes, weight, counts).schedule()


class _Walk:
    def __init__(self, problem: WholeProblem, limit: int, weight: float, counts: Mapping[int, float]) -> None:
        self.problem = problem
        self.limit = limit
        self.weight = weight
        self.counts = counts
        self.held: dict[int, int] = {}  # in which memory each storage is
        self.in_use: dict[int, int] = {}  # how many storages are in it; memory of its own has numbers below -1
        self.live = self.peak = self.work = 0
        self.most_work = _MOST_WORK * problem.work
        self.runs: list[Run] = []
        self.heap: list[tuple[float, int]] = []

    def schedule(self) -> Schedule:
        """Walk the program."""
        problem, held = self.problem, self.held
        for at, reads in enumerate(problem.reads):
            if self.work > self.most_work or len(self.runs) > _MOST_RUNS * len(problem.reads):
                self.limit = NEVER  # it does not fit
            if not all(map(held.__contains__, reads)):
                self._make(reads, at)
            if problem.makes[at] or problem.scratch[at] or self.live > self.limit:
                self._run(at, at, reads)
            else:
                self.runs.append(Run(at, ()))
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
        problem, sizes, in_use = self.problem, self.problem.sizes, self.in_use
        made, need = problem.makes[node], problem.scratch[node]
        if again:
            for storage in made:
                if problem.can_drop[storage] and in_use.get(self.held.get(storage, -1)) == 1:
                    self._let_go(storage)  # it is made anew
            fresh = [s for s in made if s not in self.held and problem.can_drop[s]]
            places = {storage: -2 - storage for storage in made}
            need += sum([sizes[storage] for storage in made])
        else:
            fresh = [s for s in made if s not in self.held]
            places = {storage: problem.places[storage] for storage in made}
            need += sum([sizes[place] for place in set(places.values()) if place != -1 and place not in in_use])
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
        price = self._cost(storage) / problem.sizes[storage] / gap**self.weight
        return float(price * self.counts.get(storage, 1.0))

    def _cost(self, storage: int) -> int:
        """The work of all nodes that would run to make a storage again, given what is there."""
        problem, held = self.problem, self.held
        makers, reads, costs = problem.makers, problem.reads, problem.costs
        first = makers[storage]
        cost, missing = costs[first], [read for read in reads[first] if read not in held]
        if not missing:
            return cost
        stack, seen = [first], {first}
        cost = 0
        while stack and len(seen) < _LONGEST_CHAIN:
            node = stack.pop()
            cost += costs[node]
            for read in reads[node]:
                if read not in held and makers[read] not in seen:
                    seen.add(makers[read])
                    stack.append(makers[read])
        return cost
