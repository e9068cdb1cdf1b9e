"""The best schedule of a small problem, by search over what is held when.

A state is a position of the program and the storages that are held there. From it, the next node runs, or one that ran
before; if there is no room, storages are dropped first, in each way that drops no more than is needed. States are taken
in the order of their work and of what must run again from there at least (A*); one is left out if another one at its
position holds as much for no more work. Without any schedule under the limit, the limit is raised to the lowest need
that was turned away, until there is one: its peak is the lowest. The search gives up after a number of states, whatever
the time.

Source: Hart, Nilsson, Raphael, "A formal basis for the heuristic determination of minimum cost paths" (1968).
Cost:   exponential in the storages that are live at once, up to the number of states.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from heapq import heappop, heappush

from dovetail.partition.whole.bounds import lowest_peak
from dovetail.partition.whole.problem import NEVER, WholeProblem
from dovetail.partition.whole.schedule import Run, Schedule, schedule_of

MOST_STORAGES = 24  # that may be dropped
MOST_STATES = 200


class _GaveUp(Exception):
    pass


def search_best(
    problem: WholeProblem, limit_bytes: int, known: Schedule, most_states: int = MOST_STATES
) -> Schedule | None:
    """The schedule with the least work under a limit, or with the lowest peak and then the least work; None if unknown.

    known: a schedule that may be the best one.
    """
    if sum(problem.can_drop) > MOST_STORAGES:
        return None
    search = _Search(problem, most_states)
    limit = max(limit_bytes, lowest_peak(problem))
    try:
        while True:
            found = search.under(limit, known.work if known.peak_bytes <= limit else NEVER)
            if found is not None or known.peak_bytes <= limit:
                break
            limit = search.turned_away
    except _GaveUp:
        return None
    best = schedule_of(problem, found) if found is not None else known
    return replace(best, least_work=best.work if best.peak_bytes <= limit_bytes else NEVER)


class _Search:
    """Masks have two bits for each storage: held where it lies the first time, and held in memory of its own."""

    def __init__(self, problem: WholeProblem, most_states: int) -> None:
        self.problem = problem
        self.left = most_states
        self.turned_away = NEVER
        self.count = len(problem.sizes)
        members: dict[int, int] = {}
        for place in problem.places:
            members[place] = members.get(place, 0) + 1
        self.is_alone = [place == s and members[place] == 1 for s, place in enumerate(problem.places)]
        self.until = self._until()
        self.again = sorted({problem.makers[s] for s, can in enumerate(problem.can_drop) if can})
        self.droppable = sum(self._bits(s) for s, can in enumerate(problem.can_drop) if can)
        self.known_live: dict[int, int] = {}
        self.read_later: list[list[int]] = [[] for _ in range(len(problem.reads) + 1)]
        for storage, maker in enumerate(problem.makers):
            if problem.can_drop[storage]:
                for at in range(maker + 1, problem.ends[storage] + 1):
                    self.read_later[at].append(storage)

    def _until(self) -> list[int]:
        """The last position at which a storage may be of use, as an operand or to make others of it."""
        problem = self.problem
        until = list(problem.ends)
        for storage in range(self.count - 1, -1, -1):
            if problem.can_drop[storage]:
                for read in problem.reads[problem.makers[storage]]:
                    if problem.can_drop[read]:
                        until[read] = max(until[read], until[storage])
        return until

    def _bits(self, storage: int) -> int:
        return 1 << storage | 1 << (storage + self.count)

    def _own(self, storage: int) -> int:
        return 1 << (storage if self.is_alone[storage] else storage + self.count)

    def _is_held(self, mask: int, storage: int) -> bool:
        return bool(mask & self._bits(storage))

    def _memories(self, mask: int) -> dict[int, int]:
        """The bits that lie in each memory that is in use."""
        found: dict[int, int] = {}
        rest = mask
        while rest:
            bit = rest & -rest
            rest ^= bit
            number = bit.bit_length() - 1
            memory = -2 - number + self.count if number >= self.count else self.problem.places[number]
            found[memory] = found.get(memory, 0) | bit
        found.pop(-1, None)
        return found

    def _size(self, memory: int) -> int:
        return self.problem.sizes[memory if memory >= 0 else -2 - memory]

    def _live(self, mask: int) -> int:
        live = self.known_live.get(mask)
        if live is None:
            live = self.known_live[mask] = sum([self._size(memory) for memory in self._memories(mask)])
        return live

    # --- moves

    def under(self, limit: int, below: int) -> list[Run] | None:
        """The runs with the least work, which must be below another; None if there are none."""
        problem = self.problem
        self.turned_away = NEVER
        self.limit = limit
        end = len(problem.reads)
        heap: list[tuple[int, int, int, int]] = [(0, 0, 0, 0)]
        came: dict[tuple[int, int], tuple[int, tuple[int, int] | None, Run | None]] = {(0, 0): (0, None, None)}
        closed: list[list[tuple[int, int]]] = [[] for _ in range(end + 1)]
        while heap:
            _, late, work, mask = heappop(heap)
            at = -late
            state = (at, mask)
            if came[state][0] < work or any(not mask & ~other and less <= work for other, less in closed[at]):
                continue
            if at == end:
                return self._path(came, state)
            self.left -= 1
            if self.left < 0:
                raise _GaveUp
            closed[at].append((mask, work))
            for node, to, new_mask, run in self._moves(at, mask):
                cost = work + (problem.costs[node] if to == at else 0)
                new = (to, new_mask)
                if cost < below and (new not in came or cost < came[new][0]):
                    least = cost + self._missing(to, new_mask)
                    if least < below:
                        came[new] = (cost, state, run)
                        heappush(heap, (least, -to, cost, new_mask))
        return None

    def _missing(self, at: int, mask: int) -> int:
        """The least work from a state on: of what is read later and not held, and what that is made of."""
        problem = self.problem
        stack = [problem.makers[s] for s in self.read_later[at] if not self._is_held(mask, s)]
        seen = set[int]()
        while stack:
            node = stack.pop()
            if node not in seen:
                seen.add(node)
                stack += [problem.makers[read] for read in problem.reads[node] if not self._is_held(mask, read)]
        return sum([problem.costs[node] for node in seen])

    def _path(
        self, came: dict[tuple[int, int], tuple[int, tuple[int, int] | None, Run | None]], state: tuple[int, int]
    ) -> list[Run]:
        runs = []
        _, before, run = came[state]
        while before is not None and run is not None:
            runs.append(run)
            _, before, run = came[before]
        return runs[::-1]

    def _moves(self, at: int, mask: int) -> Iterator[tuple[int, int, int, Run]]:
        """Nodes that can run, with the position and what is held after it."""
        problem = self.problem
        if all(self._is_held(mask, read) for read in problem.reads[at]):
            made = problem.makes[at]
            for kept in self._with_room(mask, at, is_first=True):
                new = kept | sum(1 << storage for storage in made)
                yield at, at + 1, self._of_use(new, at + 1), Run(at, made)
        for node in self.again:
            if node >= at:
                break
            useful = [s for s in problem.makes[node] if problem.can_drop[s] and self.until[s] >= at]
            if not all(self._is_held(mask, read) for read in problem.reads[node]):
                continue
            lent = sum(1 << s for s in useful if not self.is_alone[s])  # what lies in memory of its own may stay longer
            for start in {mask, mask & ~lent}:
                if all(self._is_held(start, s) for s in useful):
                    continue
                for kept in self._with_room(start, node, is_first=False):
                    fresh = tuple(s for s in useful if not self._is_held(kept, s))
                    held = kept | sum(self._own(storage) for storage in fresh)
                    yield node, at, held, Run(node, fresh)

    def _of_use(self, mask: int, at: int) -> int:
        """What is left of a mask before a position: no storage that is of no use, or whose memory is another's now."""
        rest = mask
        while rest:
            bit = rest & -rest
            rest ^= bit
            number = bit.bit_length() - 1
            storage = number % self.count
            is_shared = number < self.count and not self.is_alone[storage]
            if (self.problem.ends[storage] if is_shared else self.until[storage]) < at:
                mask ^= bit
        return mask

    def _with_room(self, mask: int, node: int, *, is_first: bool) -> Iterator[int]:
        """What may still be held while a node runs: each way to drop no more than it needs."""
        problem = self.problem
        locked = sum(self._bits(read) for read in problem.reads[node])
        memories = self._memories(mask)
        if is_first:
            places = {problem.places[storage] for storage in problem.makes[node]} - {-1}
            new = sum([self._size(place) for place in places if place not in memories])
        else:
            places = set()
            new = sum([problem.sizes[storage] for storage in problem.makes[node]])
        excess = self._live(mask) + new + problem.scratch[node] - self.limit
        if excess <= 0:
            yield mask
            return
        items = [
            (self._size(memory), bits)
            for memory, bits in memories.items()
            if not bits & (locked | ~self.droppable) and memory not in places and self._size(memory)
        ]
        items.sort(reverse=True)
        for dropped in self._least_choices(items, excess):
            yield mask & ~dropped

    def _least_choices(self, items: list[tuple[int, int]], wanted: int) -> Iterator[int]:
        """The bits of each choice of items that reaches a number of bytes, and would not without any one of them.

        items: the largest first. Of the others the one that misses least is noted.
        """
        rest = [0] * (len(items) + 1)
        for place in range(len(items) - 1, -1, -1):
            rest[place] = rest[place + 1] + items[place][0]
        stack = [(0, 0, wanted)]
        while stack:
            place, bits, missing = stack.pop()
            if missing <= 0:
                yield bits
            elif rest[place] < missing:
                self.turned_away = min(self.turned_away, self.limit + missing - rest[place])
            else:
                size, bit = items[place]
                stack.append((place + 1, bits, missing))
                stack.append((place + 1, bits | bit, missing - size))
