"""Which values to save and which nodes to run again: fewest bytes saved, then the least work.

The choice is a minimum cut. Source is forward, sink is backward; a node on the sink's side runs again. A value is an
edge from its node to its readers, which costs its bytes to cut: it is saved when its node stays behind and a reader
does not. What a node costs is an edge to it from the source; one that cannot run again is the source. One number holds
both costs: a byte saved counts more than all the work that could be done. Of equally good cuts, the one with the
smallest sink side is taken, whatever way the flow took.

With a *price* the two costs are added instead: each byte of work counts as a number of bytes saved. So a little memory
is not bought with a lot of work; the higher the price, the less work is done again.

Cases with only one answer are settled before the cut: values that can only be saved, and, unless there is a price,
nodes that backward runs at no price in saved bytes, and values that one node reads which makes no more bytes of them.

Source: min-cut rematerialization: He and Yu, "Transcending runtime-memory tradeoffs in checkpointing by being fusion
        aware" (MLSys 2023).
Cost:   that of `max_flow`, on what is left; O(values + reads) before.
"""

from __future__ import annotations

from collections.abc import Collection
from fractions import Fraction

from dovetail.analysis.max_flow import Network, push_flow, sink_side
from dovetail.partition.problem import Problem, Solution

_SOURCE, _SINK = 0, 1


def solve_cut(problem: Problem, price: Fraction | None = None) -> Solution:
    """The best choice. price: bytes saved that one byte of work is worth; endlessly few when not given."""
    return follow(problem, _Cut(problem, price).saved())


def follow(problem: Problem, saved: Collection[int]) -> Solution:
    """What backward does where these values may be saved: it saves those it needs, and runs the makers of others."""
    used: set[int] = set()
    recomputed: set[int] = set()
    seen = set(problem.wanted)
    stack = list(problem.wanted)
    while stack:
        value = stack.pop()
        node = problem.makers[value]
        if value in saved or problem.costs[node] is None:
            used.add(value)
        elif node not in recomputed:
            recomputed.add(node)
            fresh = [read for read in problem.reads[node] if read not in seen]
            seen.update(fresh)
            stack += fresh
    saved_bytes = sum([problem.sizes[value] or 0 for value in used])
    work = sum([problem.costs[node] or 0 for node in recomputed])
    return Solution(frozenset(used), frozenset(recomputed), saved_bytes, work)


class _Cut:
    def __init__(self, problem: Problem, price: Fraction | None) -> None:
        self.problem = problem
        self.price = price
        self.can_run = [cost is not None for cost in problem.costs]
        self.sizes = list(problem.sizes)
        self.wanted = set(problem.wanted)
        self.needed: set[int] = set()
        self.made: list[list[int]] = [[] for _ in problem.costs]
        for value, node in enumerate(problem.makers):
            self.made[node].append(value)
        self.is_settled = [False] * len(self.sizes)
        self.kept: set[int] = set()  # values that are saved if anybody needs them

    def saved(self) -> set[int]:
        """Values to save, where backward needs them."""
        self._find_needed()
        self._settle()
        if self.price is None:
            self._shorten_chains()
            self._find_needed()
        return self.kept | self._cut()

    def _find_needed(self) -> None:
        """Values that backward reads, or that are read by nodes which might run for them."""
        problem = self.problem
        self.needed = set(self.wanted)
        stack = list(self.wanted)
        while stack:
            node = problem.makers[stack.pop()]
            if self.can_run[node]:
                fresh = [read for read in problem.reads[node] if read not in self.needed and not self.is_settled[read]]
                self.needed.update(fresh)
                stack += fresh

    def _settle(self) -> None:
        """Decide, in program order, what costs nothing beyond what is paid anyway."""
        problem = self.problem
        for node, values in enumerate(self.made):
            needed = [value for value in values if value in self.needed]
            wanted = [value for value in needed if value in self.wanted]
            is_free = self.price is None and self.can_run[node]
            is_free = is_free and all(self.is_settled[i] for i in problem.reads[node])
            for value in needed:
                if self.sizes[value] == 0 or (value in self.wanted and not self.can_run[node]):
                    self.is_settled[value] = True
                    self.kept.add(value)
                elif is_free:
                    self.sizes[value] = None
            if is_free and any(not self.is_settled[value] for value in wanted):
                for value in needed:
                    self.is_settled[value] = True

    def _shorten_chains(self) -> None:
        """A value is not saved for one node alone that makes no more bytes of it: what the node makes is saved."""
        readers: dict[int, list[int]] = {}
        for node in self._open_nodes():
            for value in self.problem.reads[node]:
                if not self.is_settled[value]:
                    readers.setdefault(value, []).append(node)
        for value in sorted(readers):
            size = self.sizes[value]
            if len(readers[value]) > 1 or value in self.wanted or size is None:
                continue
            (reader,) = readers[value]
            after = [self.sizes[other] for other in self.made[reader] if other in self.needed]
            if not self.can_run[reader] or None in after or sum([other or 0 for other in after]) > size:
                continue
            if self.can_run[self.problem.makers[value]]:
                self.sizes[value] = None
            else:
                self.can_run[reader] = False

    def _open_nodes(self) -> list[int]:
        """Nodes that may run again for a value that is not settled."""
        open_values = [value for value in self.needed if not self.is_settled[value]]
        return sorted({node for node in map(self.problem.makers.__getitem__, open_values) if self.can_run[node]})

    def _cut(self) -> set[int]:
        problem = self.problem
        nodes = self._open_nodes()
        place = {node: 2 + k for k, node in enumerate(nodes)}
        values = sorted(value for value in self.needed if not self.is_settled[value])
        readers: dict[int, list[int]] = {value: [] for value in values}
        for node in nodes:
            for value in problem.reads[node]:
                if value in readers:
                    readers[value].append(place[node])
        work = sum([problem.costs[node] or 0 for node in nodes])
        a_byte_saved, a_byte_of_work = (1 + work, 1) if self.price is None else self.price.as_integer_ratio()[::-1]
        endless = 1 + a_byte_of_work * work + a_byte_saved * sum([self.sizes[value] or 0 for value in values])
        network = Network(2 + len(nodes) + len(values))
        heads: dict[int, int] = {}
        for number, value in enumerate(values):
            tail, size = place.get(problem.makers[value], _SOURCE), self.sizes[value]
            if value in self.wanted:
                heads[value] = _SINK
            elif size is None:
                heads[value] = tail
            elif len(readers[value]) == 1:
                heads[value] = readers[value][0]
            else:
                heads[value] = 2 + len(nodes) + number
            if heads[value] != tail:
                network.connect(tail, heads[value], endless if size is None else size * a_byte_saved)
            if heads[value] != _SINK:
                for reader in readers[value]:
                    if reader != heads[value]:
                        network.connect(heads[value], reader, endless)
        for node in nodes:
            network.connect(_SOURCE, place[node], a_byte_of_work * (problem.costs[node] or 0))
        push_flow(network, _SOURCE, _SINK)
        runs = sink_side(network, _SINK)
        return {
            value
            for value in values
            if self.sizes[value] is not None
            and not runs[place.get(problem.makers[value], _SOURCE)]
            and runs[heads[value]]
        }
