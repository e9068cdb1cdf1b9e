"""Which items to save and which jobs to run again: fewest bytes saved, then the least work.

The choice is a minimum cut. Source is forward, sink is backward; a job on the sink's side runs again. An item is an
edge from its job to its readers, which costs its bytes to cut: it is saved when its job stays behind and a reader does
not. What a job costs is an edge to it from the source; one that cannot run again is the source. One number holds both
costs: a byte saved counts more than all the work that could be done. Of equally good cuts, the one with the smallest
sink side is taken, whatever way the flow took.

With a *price* the two costs are added instead: each byte of work counts as a number of bytes saved. So a little memory
is not bought with a lot of work; the higher the price, the less work is done again.

Cases with only one answer are settled before the cut: items that can only be saved, and, unless there is a price, jobs
that backward runs at no price in saved bytes, and items that one job reads which makes no more bytes of them.

Source: min-cut rematerialization: He and Yu, "Transcending runtime-memory tradeoffs in checkpointing by being fusion
        aware" (MLSys 2023).
Cost:   that of `max_flow`, on what is left; O(items + reads) before.
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
    """What backward does where these items may be saved: it saves those it needs, and runs the makers of others."""
    used: set[int] = set()
    again: set[int] = set()
    seen = set(problem.wanted)
    stack = list(problem.wanted)
    while stack:
        item = stack.pop()
        job = problem.makers[item]
        if item in saved or problem.costs[job] is None:
            used.add(item)
        elif job not in again:
            again.add(job)
            fresh = [read for read in problem.reads[job] if read not in seen]
            seen.update(fresh)
            stack += fresh
    saved_bytes = sum([problem.sizes[item] or 0 for item in used])
    work = sum([problem.costs[job] or 0 for job in again])
    return Solution(frozenset(used), frozenset(again), saved_bytes, work)


class _Cut:
    def __init__(self, problem: Problem, price: Fraction | None) -> None:
        self.problem = problem
        self.price = price
        self.can_run = [cost is not None for cost in problem.costs]
        self.sizes = list(problem.sizes)
        self.wanted = set(problem.wanted)
        self.needed: set[int] = set()
        self.made: list[list[int]] = [[] for _ in problem.costs]
        for item, job in enumerate(problem.makers):
            self.made[job].append(item)
        self.is_settled = [False] * len(self.sizes)
        self.kept: set[int] = set()  # items that are saved if anybody needs them

    def saved(self) -> set[int]:
        """Items to save, where backward needs them."""
        self._find_needed()
        self._settle()
        if self.price is None:
            self._shorten_chains()
            self._find_needed()
        return self.kept | self._cut()

    def _find_needed(self) -> None:
        """Items that backward reads, or that are read by jobs which might run for them."""
        problem = self.problem
        self.needed = set(self.wanted)
        stack = list(self.wanted)
        while stack:
            job = problem.makers[stack.pop()]
            if self.can_run[job]:
                fresh = [item for item in problem.reads[job] if item not in self.needed and not self.is_settled[item]]
                self.needed.update(fresh)
                stack += fresh

    def _settle(self) -> None:
        """Decide, in program order, what costs nothing beyond what is paid anyway."""
        problem = self.problem
        for job, items in enumerate(self.made):
            needed = [item for item in items if item in self.needed]
            wanted = [item for item in needed if item in self.wanted]
            is_free = self.price is None and self.can_run[job]
            is_free = is_free and all(self.is_settled[i] for i in problem.reads[job])
            for item in needed:
                if self.sizes[item] == 0 or (item in self.wanted and not self.can_run[job]):
                    self.is_settled[item] = True
                    self.kept.add(item)
                elif is_free:
                    self.sizes[item] = None
            if is_free and any(not self.is_settled[item] for item in wanted):
                for item in needed:
                    self.is_settled[item] = True

    def _shorten_chains(self) -> None:
        """An item is not saved for one job alone that makes no more bytes of it: what the job makes is saved."""
        readers: dict[int, list[int]] = {}
        for job in self._open_jobs():
            for item in self.problem.reads[job]:
                if not self.is_settled[item]:
                    readers.setdefault(item, []).append(job)
        for item in sorted(readers):
            size = self.sizes[item]
            if len(readers[item]) > 1 or item in self.wanted or size is None:
                continue
            (reader,) = readers[item]
            after = [self.sizes[other] for other in self.made[reader] if other in self.needed]
            if not self.can_run[reader] or None in after or sum([other or 0 for other in after]) > size:
                continue
            if self.can_run[self.problem.makers[item]]:
                self.sizes[item] = None
            else:
                self.can_run[reader] = False

    def _open_jobs(self) -> list[int]:
        """Jobs that may run again for an item that is not settled."""
        open_items = [item for item in self.needed if not self.is_settled[item]]
        return sorted({job for job in map(self.problem.makers.__getitem__, open_items) if self.can_run[job]})

    def _cut(self) -> set[int]:
        problem = self.problem
        jobs = self._open_jobs()
        place = {job: 2 + k for k, job in enumerate(jobs)}
        items = sorted(item for item in self.needed if not self.is_settled[item])
        readers: dict[int, list[int]] = {item: [] for item in items}
        for job in jobs:
            for item in problem.reads[job]:
                if item in readers:
                    readers[item].append(place[job])
        work = sum([problem.costs[job] or 0 for job in jobs])
        a_byte_saved, a_byte_of_work = (1 + work, 1) if self.price is None else self.price.as_integer_ratio()[::-1]
        endless = 1 + a_byte_of_work * work + a_byte_saved * sum([self.sizes[item] or 0 for item in items])
        network = Network(2 + len(jobs) + len(items))
        heads: dict[int, int] = {}
        for number, item in enumerate(items):
            tail, size = place.get(problem.makers[item], _SOURCE), self.sizes[item]
            if item in self.wanted:
                heads[item] = _SINK
            elif size is None:
                heads[item] = tail
            elif len(readers[item]) == 1:
                heads[item] = readers[item][0]
            else:
                heads[item] = 2 + len(jobs) + number
            if heads[item] != tail:
                network.connect(tail, heads[item], endless if size is None else size * a_byte_saved)
            if heads[item] != _SINK:
                for reader in readers[item]:
                    if reader != heads[item]:
                        network.connect(heads[item], reader, endless)
        for job in jobs:
            network.connect(_SOURCE, place[job], a_byte_of_work * (problem.costs[job] or 0))
        push_flow(network, _SOURCE, _SINK)
        runs = sink_side(network, _SINK)
        return {
            item
            for item in items
            if not runs[place.get(problem.makers[item], _SOURCE)] and runs[heads[item]] and self.sizes[item] is not None
        }
