"""The best schedule of a small problem by trying everything, and random small problems.

Each state is tried: a position and what is held there, in which memory. From each, one storage is dropped, or one node
runs, the next one or an earlier one. Nothing is left out because something else looks better. Shares no code with the
solvers, nor with what they count by.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterator

from dovetail.partition.whole.problem import NEVER, WholeProblem

State = tuple[int, frozenset[tuple[int, bool]]]
"""A position, and the storages held there: whether each lies where it does when it is made for the first time."""


class TooLarge(Exception):
    """There are too many states to try."""


def least_work(problem: WholeProblem, limit: int, most: int = 200_000) -> int | None:
    """The least work of all schedules under a limit; None where there is none. Raises: TooLarge."""
    return _cheapest(problem, most, lambda cost, need, work: cost + work if need <= limit else None)


def lowest_peak(problem: WholeProblem, most: int = 200_000) -> int:
    """The lowest peak of all schedules. Raises: TooLarge."""
    found = _cheapest(problem, most, lambda cost, need, work: max(cost, need))
    assert found is not None
    return found


def _cheapest(problem: WholeProblem, most: int, add: Callable[[int, int, int], int | None]) -> int | None:
    """add: the cost of a way that goes on with a need and with work; None where it may not."""
    best: dict[State, int] = {(0, frozenset()): 0}
    queue = [(0, 0, 0)]
    states: list[State] = [(0, frozenset())]
    while queue:
        cost, _, number = heapq.heappop(queue)
        state = states[number]
        if best[state] < cost:
            continue
        if state[0] == len(problem.reads):
            return cost
        if len(states) > most:
            raise TooLarge
        for new, need, work in _moves(problem, *state):
            total = cost if need is None else add(cost, need, work)
            if total is not None and total < best.get(new, NEVER * 2):
                best[new] = total
                states.append(new)
                heapq.heappush(queue, (total, -new[0], len(states) - 1))
    return None


def _memory(problem: WholeProblem, storage: int, first: bool) -> tuple[str, int, int] | None:
    place = problem.places[storage]
    if not first:
        return ("own", storage, problem.sizes[storage])
    return None if place == -1 else ("place", place, problem.sizes[place])


def _bytes(problem: WholeProblem, held: frozenset[tuple[int, bool]]) -> int:
    return sum(memory[2] for memory in {_memory(problem, *entry) for entry in held} if memory is not None)


def _moves(
    problem: WholeProblem, at: int, held: frozenset[tuple[int, bool]]
) -> Iterator[tuple[State, int | None, int]]:
    there = {storage for storage, _ in held}
    for storage, first in held:
        if problem.can_drop[storage]:
            yield (at, held - {(storage, first)}), None, 0
    if there >= set(problem.reads[at]):
        after = held | {(storage, True) for storage in problem.makes[at]}
        need = _bytes(problem, after) + problem.scratch[at]
        ended = {(s, first) for s, first in after if problem.ends[s] <= at and _goes(problem, s, first)}
        yield (at + 1, after - ended), need, 0
    for node in range(at):
        made = {s for s in problem.makes[node] if problem.can_drop[s] and s not in there}
        if made and there >= set(problem.reads[node]):
            need = _bytes(problem, held) + sum(problem.sizes[s] for s in problem.makes[node]) + problem.scratch[node]
            yield (at, held | {(storage, False) for storage in made}), need, problem.costs[node]


def _goes(problem: WholeProblem, storage: int, first: bool) -> bool:
    """Whether a storage that is not used any more is gone: it cannot be made again, or others lie where it lies."""
    is_alone = problem.places[storage] == storage and problem.places.count(storage) == 1
    return not problem.can_drop[storage] or (first and not is_alone)


def random_problem(seed: int) -> WholeProblem:
    """A forward chain with branches, then a backward one that reads what it made; some lie in others' memory."""
    drawn = random.Random(seed)
    forward = drawn.randint(3, 6)
    reads: list[tuple[int, ...]] = []
    makes: list[tuple[int, ...]] = []
    makers: list[int] = []
    for node in range(forward):
        recent = list(range(len(makers)))[-3:]
        reads.append(tuple(sorted(drawn.sample(recent, min(len(recent), drawn.choice((0, 1, 1, 2)))))))
        count = drawn.choice((1, 1, 1, 2))
        makes.append(tuple(range(len(makers), len(makers) + count)))
        makers += [node] * count
    early = len(makers)
    for node in range(forward, forward + drawn.randint(2, 5)):
        read = {drawn.randrange(early) for _ in range(drawn.choice((1, 1, 2)))} | {len(makers) - 1}
        reads.append(tuple(sorted(read)))
        makes.append((len(makers),))
        makers.append(node)
    return _finished(drawn, reads, makes, makers)


def _finished(
    drawn: random.Random, reads: list[tuple[int, ...]], makes: list[tuple[int, ...]], makers: list[int]
) -> WholeProblem:
    count = len(makers)
    uses = [tuple(at for at, read in enumerate(reads) if s in read) for s in range(count)]
    ends = [max(use, default=maker) for use, maker in zip(uses, makers, strict=True)]
    ends[-1] = NEVER
    sizes = [drawn.choice((1, 2, 4, 4, 8, drawn.randint(1, 9))) for _ in range(count)]
    places = list(range(count))
    taken: set[int] = set()
    for storage, maker in enumerate(makers):
        dying = [read for read in reads[maker] if ends[read] == maker and places[read] not in taken]
        if dying and drawn.random() < 0.4:
            places[storage] = places[drawn.choice(dying)]
            sizes[storage] = sizes[places[storage]]
        elif drawn.random() < 0.05:
            places[storage] = -1
    can_run = [drawn.random() < 0.85 for _ in makes]
    until: list[int] = []
    can_drop = []
    for storage, maker in enumerate(makers):
        horizon = min((until[read] for read in reads[maker]), default=NEVER) if can_run[maker] else -1
        can_drop.append(horizon > ends[storage] if ends[storage] != NEVER else False)
        until.append(max(horizon, ends[storage] + 1))
    return WholeProblem(
        storages=tuple(range(count)),
        reads=tuple(reads),
        makes=tuple(makes),
        costs=tuple(drawn.choice((0, 1, 1, 2, 5, drawn.randint(1, 20))) for _ in makes),
        scratch=tuple(drawn.choice((0, 0, 0, 3)) for _ in makes),
        sizes=tuple(sizes),
        places=tuple(places),
        makers=tuple(makers),
        uses=tuple(uses),
        ends=tuple(ends),
        can_drop=tuple(can_drop),
    )
