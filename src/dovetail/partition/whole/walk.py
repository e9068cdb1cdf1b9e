"""Fit a program under a limit: drop values that are cheap to compute again and not needed for long.

The program is walked in its order with a count of live bytes. Where a node would need more than the limit, values are
dropped, those first whose *price* is lowest: the work of making them again, for each byte and position until their
next use. A dropped value is made again right before the node that needs it, and then stays, so that chains that several
nodes need are made once. Where there is a file, contents leave for it instead, if they come back for less: what that
costs is a share of the time that it takes, as it goes on while nodes run, and all that the gap is too short for. A
solver may let storages count for more or less than they cost.

Source: Kirisame et al., "Dynamic tensor rematerialization" (ICLR 2021), with the future known, so that the time to the
        next use takes the place of staleness (Belady, "A study of replacement algorithms for a virtual-storage
        computer", 1966).
Cost:   O(nodes + operands + drops log drops), and what chains of dropped values cost to follow.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from heapq import heappop, heappush
from itertools import accumulate
from typing import NamedTuple

from dovetail.partition.whole.problem import NEVER, WholeProblem
from dovetail.partition.whole.schedule import Act, Move, Run, Schedule, Way, schedule_of
from dovetail.partition.whole.transfers import with_beginnings

_LONGEST_CHAIN = 200  # nodes that are followed to find what it costs to make a value again
_MOST_WORK = 3  # times the work of the program: a run that needs more is given up
_MOST_RUNS = 100  # times the nodes of the program, as some nodes may count as no work


class Most(NamedTuple):
    """What a schedule may need that is looked for."""

    peak_bytes: int
    work: float


NO_MOST = Most(NEVER, NEVER)


class Walker:
    """Walks over one problem. firsts: the first run of each node. ending: the storages that each node uses last."""

    def __init__(self, problem: WholeProblem) -> None:
        self.problem = problem
        self.firsts = [Run(at, made) for at, made in enumerate(problem.makes)]
        self.ending: list[list[int]] = [[] for _ in problem.reads]
        for storage, end in enumerate(problem.ends):
            if end != NEVER:
                self.ending[end].append(storage)
        self._prices: dict[float, list[float]] = {}

    def walk(
        self,
        limit_bytes: int,
        weight: float,
        counts: Mapping[int, float],
        share: float | None = None,
        most: Most = NO_MOST,
    ) -> Schedule | None:
        """The schedule that comes of dropping the cheapest storages where the limit is met.

        weight: an exponent, of the time to the next use. counts: factors of the prices of some storages. share: of the
        time of transfers that counts as work; None: no contents leave. most: where more is needed, the walk ends, and
        gives None; not where contents may leave.
        """
        found = _Walk(self, limit_bytes, weight, counts, share).schedule(most if share is None else NO_MOST)
        if found is None or share is None or not any(isinstance(run, Move) for run in found.runs):
            return found
        return schedule_of(self.problem, with_beginnings(self.problem, found.runs, limit_bytes))

    def prices(self, weight: float) -> list[float]:
        """What storages cost right after they are made, when all is there that they are made of."""
        known = self._prices.get(weight)
        if known is None:
            problem = self.problem
            known = self._prices[weight] = [
                problem.costs[maker] / size / (uses[0] - maker) ** weight if can_drop and size and uses else 0.0
                for can_drop, maker, size, uses in zip(
                    problem.can_drop, problem.makers, problem.sizes, problem.uses, strict=True
                )
            ]
        return known


class _Walk:
    """away: storages whose contents are in the file."""

    def __init__(
        self, walker: Walker, limit: int, weight: float, counts: Mapping[int, float], share: float | None
    ) -> None:
        self.walker = walker
        self.problem = problem = walker.problem
        self.prices = walker.prices(weight)
        self.share = share if problem.writes else None
        self.away: set[int] = set()
        self.times = [0, *accumulate(problem.costs)] if self.share is not None else []
        self.limit = limit
        self.weight = weight
        self.counts = counts
        self.held: dict[int, int] = {}  # in which memory each storage is
        self.in_use: dict[int, int] = {}  # how many storages are in it; memory of its own has numbers below -1
        self.live = self.peak = self.work = 0
        self.most_work: float = _MOST_WORK * problem.work
        self.most_runs = _MOST_RUNS * len(problem.reads)
        self.runs: list[Act] = []
        self.heap: list[tuple[float, int]] = []

    def schedule(self, most: Most) -> Schedule | None:
        """Walk the program; None where more is needed than that."""
        problem, held, runs, scratch = self.problem, self.held, self.runs, self.problem.scratch
        firsts, ending = self.walker.firsts, self.walker.ending
        self.most_work = min(self.most_work, most.work)
        for at, (reads, made) in enumerate(zip(problem.reads, problem.makes, strict=True)):
            for storage in reads:
                if storage not in held:
                    self._make(reads, at)
                    break
            if made or scratch[at] or self.live > self.limit:
                self._run(at, made, reads)
            else:
                runs.append(firsts[at])
            for storage in ending[at]:
                self._let_go(storage)
            if self.peak > most.peak_bytes or self.work > most.work:
                return None
            self._give_up_where_it_takes_too_much()
        return Schedule(tuple(runs), self.peak, self.work)

    def _give_up_where_it_takes_too_much(self) -> None:
        if self.work > self.most_work or len(self.runs) > self.most_runs:
            self.limit = NEVER  # it does not fit: nothing more is dropped

    # --- memory

    def _hold(self, storage: int, memory: int) -> None:
        self.held[storage] = memory
        if memory == -1:
            return
        count = self.in_use.get(memory, 0)
        if not count:
            self.live += self.problem.sizes[memory if memory >= 0 else -2 - memory]
        self.in_use[memory] = count + 1

    def _let_go(self, storage: int) -> int:
        """Drop a storage, and say how many bytes are free now."""
        memory = self.held.pop(storage, -1)
        if memory == -1:
            return 0
        count = self.in_use[memory] - 1
        if count:
            self.in_use[memory] = count
            return 0
        del self.in_use[memory]
        size = self.problem.sizes[memory if memory >= 0 else -2 - memory]
        self.live -= size
        return size

    def _run(self, node: int, made: tuple[int, ...], locked: Collection[int]) -> None:
        """Run a node for the first time."""
        problem, held, in_use = self.problem, self.held, self.in_use
        sizes, places, need = problem.sizes, problem.places, problem.scratch[node]
        for place in {places[storage] for storage in made} if len(made) > 1 else [places[storage] for storage in made]:
            if place != -1 and place not in in_use:
                need += sizes[place]
        if self.live + need > self.limit:
            self._drop(self.live + need - self.limit, node, locked)
        if self.live + need > self.peak:
            self.peak = self.live + need
        self.runs.append(self.walker.firsts[node])
        for storage in made:
            place = held[storage] = places[storage]
            if place == -1:
                continue
            count = in_use.get(place, 0)
            if not count:
                self.live += sizes[place]
            in_use[place] = count + 1
            if not sizes[storage]:
                continue
            if self.share is not None:
                self._offer(storage, node)
            elif problem.can_drop[storage]:
                price = self.prices[storage]
                heappush(self.heap, (price * self.counts[storage] if storage in self.counts else price, storage))

    def _run_again(self, node: int, at: int, locked: Collection[int]) -> None:
        problem, sizes, held, in_use = self.problem, self.problem.sizes, self.held, self.in_use
        made, need, can_drop = problem.makes[node], problem.scratch[node], problem.can_drop
        fresh = []
        for storage in made:
            need += sizes[storage]
            if can_drop[storage]:
                if storage in held and in_use.get(held[storage]) == 1:
                    self._let_go(storage)  # it is made anew
                if storage not in held:
                    fresh.append(storage)
        if self.live + need > self.limit:
            self._drop(self.live + need - self.limit, at, locked)
        if self.live + need > self.peak:
            self.peak = self.live + need
        self.runs.append(Run(node, tuple(fresh)))
        self.work += problem.costs[node]
        for storage in fresh:
            held[storage] = -2 - storage
            in_use[-2 - storage] = 1
            self.live += sizes[storage]
        for storage in fresh:
            if not sizes[storage]:
                continue
            if self.share is not None:
                self._offer(storage, at)
            else:
                heappush(self.heap, (self._price(storage, at, problem.costs[node]), storage))

    def _offer(self, storage: int, at: int) -> None:
        """Let a storage be dropped, or leave, that was made now."""
        problem = self.problem
        if problem.can_drop[storage] or self._may_leave(storage):
            heappush(self.heap, (self._price(storage, at), storage))

    # --- making again

    def _make(self, storages: Iterable[int], at: int) -> None:
        """Have these storages, which a node at some position needs."""
        problem, held = self.problem, self.held
        wanted = set(storages)
        stack = [storage for storage in wanted if storage not in held]
        if len(stack) == 1 and stack[0] not in self.away:
            maker = problem.makers[stack[0]]
            if all(map(held.__contains__, problem.reads[maker])):
                self._run_again(maker, at, wanted.union(problem.reads[maker]))
                return
        locked = dict.fromkeys(wanted, 1)  # what is to stay, and for how many
        waiting: set[int] = set()  # what is to be made of some of it
        while stack:
            storage = stack[-1]
            maker = problem.makers[storage]
            if storage in held:
                stack.pop()
                if storage in waiting:
                    waiting.remove(storage)
                    for read in problem.reads[maker]:
                        locked[read] -= 1
                        if not locked[read]:
                            del locked[read]
                continue
            if storage in self.away and self._comes_back(storage):
                self._fetch(storage, at, locked)
                continue
            if storage not in waiting:
                waiting.add(storage)
                for read in problem.reads[maker]:
                    locked[read] = locked.get(read, 0) + 1
            missing = [read for read in problem.reads[maker] if read not in held]
            if missing:
                stack += missing
                continue
            self._run_again(maker, at, locked)
            self._give_up_where_it_takes_too_much()  # a chain is made again once for each use, and of that, and so on

    # --- contents that leave

    def _may_leave(self, storage: int) -> bool:
        return self.share is not None and self.problem.writes[storage] != NEVER

    def _comes_back(self, storage: int) -> bool:
        """Whether contents that are in the file are fetched rather than made again."""
        assert self.share is not None, "or nothing had left"
        fetch = self.share * self.problem.fetches[storage]
        return not self.problem.can_drop[storage] or fetch <= self._cost(storage)

    def _fetch(self, storage: int, at: int, locked: Collection[int]) -> None:
        size = self.problem.sizes[storage]
        if self.live + size > self.limit:
            self._drop(self.live + size - self.limit, at, locked)
        self.peak = max(self.peak, self.live + size)
        self._hold(storage, -2 - storage)
        self.runs += [Move(Way.FETCH, storage), Move(Way.FETCHED, storage)]
        heappush(self.heap, (self._price(storage, at), storage))

    def _cost_away(self, storage: int, use: int) -> float:
        """What it costs that contents leave and come back before a use; only the latter if they left before."""
        if not self._may_leave(storage) or self.share is None:
            return NEVER
        problem = self.problem
        moved = problem.fetches[storage] + (0 if storage in self.away else problem.writes[storage])
        time = self.times[use] - self.times[problem.makers[storage] + 1]
        return self.share * moved + max(0, moved - time)

    def _let_leave(self, at: int, storage: int) -> int:
        """Drop a storage, after its contents have left if that is how they come back. Returns: bytes that are free."""
        problem = self.problem
        uses = problem.uses[storage]
        place = bisect_left(uses, at + 1)
        if self._may_leave(storage) and storage not in self.away and place < len(uses):
            again = self._cost(storage) if problem.can_drop[storage] else NEVER
            if self._cost_away(storage, uses[place]) < again:
                self.runs.append(Move(Way.SPILLED, storage))
                self.away.add(storage)
        return self._let_go(storage)

    # --- dropping

    def _drop(self, wanted: int, at: int, locked: Collection[int]) -> None:
        """Drop storages of so many bytes, the cheapest first, as far as there are any."""
        aside: list[tuple[float, int]] = []
        heap, held, let_go = self.heap, self.held, self._let_go if self.share is None else partial(self._let_leave, at)
        while wanted > 0 and heap:
            price, storage = heappop(heap)
            if storage not in held:
                continue
            if storage in locked:
                aside.append((price, storage))
                continue
            now = self._price(storage, at)
            if heap and now > price and now > heap[0][0]:
                heappush(heap, (now, storage))
                continue
            wanted -= let_go(storage)
        for entry in aside:
            heappush(heap, entry)

    def _price(self, storage: int, at: int, known: int | None = None) -> float:
        """What it costs to make a storage again, for each byte, the less the longer it is not used.

        known: the work of that, if it is known.
        """
        problem = self.problem
        uses = problem.uses[storage]
        place = bisect_left(uses, at + 1)
        if place == len(uses):
            return 0.0  # it was only made for another one
        cost: float = known if known is not None else self._cost(storage) if problem.can_drop[storage] else NEVER
        if self.share is not None:
            cost = min(cost, self._cost_away(storage, uses[place]))
        price: float = cost / problem.sizes[storage] / (uses[place] - at) ** self.weight
        return price * self.counts[storage] if storage in self.counts else price

    def _cost(self, storage: int) -> int:
        """The work of all nodes that would run to make a storage again, given what is there."""
        problem, held, away = self.problem, self.held, self.away
        makers, reads, costs = problem.makers, problem.reads, problem.costs
        first = makers[storage]
        for read in reads[first]:
            if read not in held:
                break
        else:
            return costs[first]
        stack, seen = [first], {first}
        cost = 0
        while stack and len(seen) < _LONGEST_CHAIN:
            node = stack.pop()
            cost += costs[node]
            for read in reads[node]:
                if read in held:
                    continue
                if away and read in away:
                    cost += int((self.share or 0) * problem.fetches[read])
                    continue
                maker = makers[read]
                if maker not in seen:
                    seen.add(maker)
                    stack.append(maker)
        return cost
