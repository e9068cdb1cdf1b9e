"""What no schedule can do better: the least work under a limit, by minimum cuts at one position of a program.

At any position, what is used later is there or is made again later, from what is there or is made again in turn. So the
cheapest choice at one position is a minimum cut: a storage that is kept costs its bytes, times a price, and a node
that runs again its work. For each price, the cut less the price of the bytes that the limit leaves is a bound
(Lagrange), and what the cut keeps and drops is a plan that the solver can follow. The position is the one where most is
live.

Source: Everett, "Generalized Lagrange multiplier method" (1963), over the cuts of He and Yu, "Transcending
        runtime-memory tradeoffs in checkpointing by being fusion aware" (MLSys 2023).
Cost:   a few dozen cuts (`analysis.max_flow`) of what is live at the position and what that is made of.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt

from dovetail.analysis.max_flow import Network, push_flow, sink_side
from dovetail.partition.whole.problem import NEVER, WholeProblem

_SOURCE, _SINK = 0, 1
_ONE = 1 << 10  # prices are whole numbers of its parts
_HIGHEST = 1 << 24
_MOST_PLANS = 4


@dataclass(frozen=True, slots=True)
class Plan:
    """What to keep and what to drop over one position. held_bytes: of all that is there then, scratch included."""

    keep: frozenset[int]
    drop: frozenset[int]
    held_bytes: int


@dataclass(frozen=True, slots=True)
class Bound:
    """least_work: `NEVER` where no schedule keeps the limit. plans: those whose bytes are closest to it."""

    least_work: int
    plans: tuple[Plan, ...] = ()


def live_bytes(problem: WholeProblem) -> list[int]:
    """Bytes of what is live while each node runs for the first time, where nothing runs again; scratch included."""
    in_use: dict[int, int] = {}
    ending: list[list[int]] = [[] for _ in problem.reads]
    for storage, end in enumerate(problem.ends):
        if end != NEVER:
            ending[end].append(storage)
    live, found = 0, []
    for at, made in enumerate(problem.makes):
        for storage in made:
            place = problem.places[storage]
            if place >= 0 and place not in in_use:
                live += problem.sizes[place]
            in_use[place] = in_use.get(place, 0) + 1
        found.append(live + problem.scratch[at])
        for storage in ending[at]:
            place = problem.places[storage]
            in_use[place] -= 1
            if not in_use[place]:
                del in_use[place]
                live -= problem.sizes[place] if place >= 0 else 0
    return found


class Position:
    """The choice at one position. fixed_bytes: of what is there then whatever is chosen."""

    def __init__(self, problem: WholeProblem, at: int) -> None:
        self.problem = problem
        locked = {*problem.reads[at], *problem.makes[at]}
        early = [storage for storage, maker in enumerate(problem.makers) if maker <= at]
        alive = [storage for storage in early if problem.ends[storage] >= at]
        fixed = [storage for storage in alive if storage in locked or not problem.can_drop[storage]]
        taken: dict[int, int] = {-1: 0}
        for storage in fixed:
            place = problem.places[storage]
            taken[place] = max(taken.get(place, 0), self._least_bytes(storage, at))
        self.fixed_bytes = problem.scratch[at] + sum(taken.values())
        self.there = {storage for storage in alive if problem.places[storage] in taken}
        self.early = set(early)
        self.wanted = {s for s in early if problem.ends[s] > at and s not in self.there}
        self._find_needed()
        sharing: dict[int, int] = {}
        for storage in self.wanted:
            sharing[problem.places[storage]] = sharing.get(problem.places[storage], 0) + 1
        # Of storages that share memory each counts for a part, so that all of them together are not too dear.
        shares = {s: sharing[problem.places[s]] if s in self.wanted else 1 for s in self.needed}
        self.sizes = {s: self._least_bytes(s, at) // share for s, share in shares.items()}

    def _least_bytes(self, storage: int, at: int) -> int:
        """Of the memory that it lies in, where it may have been made again."""
        problem, place = self.problem, self.problem.places[storage]
        if place < 0:
            return 0
        is_first = not problem.can_drop[storage] or problem.makers[storage] == at
        return problem.sizes[place] if is_first else min(problem.sizes[place], problem.sizes[storage])

    def _find_needed(self) -> None:
        """Storages that may be made again after the position, and what they are made of; the nodes that make them."""
        problem = self.problem
        self.needed = set(self.wanted)
        self.nodes: set[int] = set()
        stack = [*self.wanted]
        while stack:
            node = problem.makers[stack.pop()]
            if node in self.nodes:
                continue
            self.nodes.add(node)
            new = [r for r in problem.reads[node] if r in self.early and r not in self.there and r not in self.needed]
            self.needed.update(new)
            stack += new

    def cut(self, price: int) -> tuple[int, Plan]:
        """The least of work and kept bytes, in parts of work, where a kept byte costs so many; and what it keeps."""
        problem, nodes, values = self.problem, sorted(self.nodes), sorted(self.needed)
        place = {node: 2 + k for k, node in enumerate(nodes)}
        kept = {value: 2 + len(nodes) + k for k, value in enumerate(values)}
        network = Network(2 + len(nodes) + len(values))
        endless = 1 + _ONE * sum([problem.costs[node] for node in nodes]) + price * sum(self.sizes.values())
        for node in nodes:
            network.connect(_SOURCE, place[node], _ONE * problem.costs[node])
            for read in problem.reads[node]:
                if read in kept and read not in self.wanted:
                    network.connect(kept[read], place[node], endless)
        for value in values:
            head = _SINK if value in self.wanted else kept[value]
            network.connect(place[problem.makers[value]], head, price * self.sizes[value])
        flow = push_flow(network, _SOURCE, _SINK)
        late = sink_side(network, _SINK)
        keep = {v for v in values if not late[place[problem.makers[v]]] and (v in self.wanted or late[kept[v]])}
        held = self.fixed_bytes + sum([self.sizes[value] for value in keep])
        return flow, Plan(frozenset(keep), frozenset(self.needed - keep), held)


def bound_work(problem: WholeProblem, limit_bytes: int, position: Position) -> Bound:
    """The least work that a schedule under a limit needs, as far as one position tells."""
    if position.fixed_bytes > limit_bytes:
        return Bound(NEVER)
    low, high = 1, _HIGHEST
    best, plans = 0, list[Plan]()
    while high - low > 1 and 64 * high > 65 * low:
        price = max(low + 1, isqrt(low * high))
        flow, plan = position.cut(price)
        best = max(best, -((price * (limit_bytes - position.fixed_bytes) - flow) // _ONE))
        plans.append(plan)
        if plan.held_bytes > limit_bytes:
            low = price
        else:
            high = price
    close = sorted(dict.fromkeys(plans), key=lambda plan: abs(plan.held_bytes - limit_bytes))
    return Bound(best, tuple(close[:_MOST_PLANS]))


def lowest_peak(problem: WholeProblem) -> int:
    """No schedule has a lower peak: at each node, what cannot be made again and what it reads and makes is there."""
    in_use: dict[int, int] = {}
    ending: list[list[int]] = [[] for _ in problem.reads]
    fixed = [not again for again in problem.can_drop]
    for storage, end in enumerate(problem.ends):
        if fixed[storage] and end != NEVER:
            ending[end].append(storage)
    live = lowest = 0
    for at, (reads, made) in enumerate(zip(problem.reads, problem.makes, strict=True)):
        for storage in made:
            place = problem.places[storage]
            if fixed[storage] and place >= 0:
                live += problem.sizes[place] if place not in in_use else 0
                in_use[place] = in_use.get(place, 0) + 1
        here = {problem.places[storage] for storage in made} - {-1}
        new = sum([problem.sizes[place] for place in here if place not in in_use])
        own: dict[int, int] = {}  # what was made again lies in memory of its own
        for storage in reads:
            place = problem.places[storage]
            if place >= 0 and place not in in_use and place not in here:
                own[place] = own.get(place, 0) + problem.sizes[storage]
        new += sum([min(problem.sizes[place], size) for place, size in own.items()])
        lowest = max(lowest, live + problem.scratch[at] + new)
        for storage in ending[at]:
            place = problem.places[storage]
            if place >= 0:
                in_use[place] -= 1
                if not in_use[place]:
                    del in_use[place]
                    live -= problem.sizes[place]
    return lowest
