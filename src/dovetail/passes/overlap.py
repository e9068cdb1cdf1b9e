"""Start collectives as early and wait for them as late as dependencies and the peak allow.

    all_reduce_(a, "SUM", "0")                  t = start_all_reduce_(a, "SUM", "0")
    p.add_(a, alpha=-0.1)                       y = mm(e, w)
    y = mm(e, w)                          ->    wait_(t, [a], [], "0")
                                                p.add_(a, alpha=-0.1)

Collectives start in the order in which they stood, over all process groups, and effects keep theirs. What a collective
reads is not written before its wait, and what it writes is not touched. Nothing is timed: plans are functions of the
program and the peak alone. In rounds more and more collectives may be under way at once, each of them in turn, so that
memory that is short serves all alike: moves that raise the peak above what it may be are not made.

In the end, what the program writes outside moves behind the last wait, if there is room: a collective that fails then
leaves all as it was.

Bitwise: the same operators on the same operands. Cost: O(nodes + operands) for each move that is tried.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dovetail.analysis.liveness import NOTHING, Need, storage_bytes
from dovetail.analysis.reads import can_fail, is_view
from dovetail.ir.made_symbols import made_symbols
from dovetail.ir.prim import Prim
from dovetail.ir.program import Node, Program, Value, meta_symbols
from dovetail.ir.sizes import Number
from dovetail.ops.collectives import WAIT, collective_of, is_started, started_apart
from dovetail.ops.facts import facts_of, written_values
from dovetail.ops.transfers import TRANSFERS, token_meta

# How many collectives may be under way beside one, in each round.
_ROUNDS = (0, 1, 2, 4, 1 << 30)


@dataclass(frozen=True, slots=True)
class OverlapReport:
    """collectives: how many the program has. apart: those that are waited for later than they start. between: nodes
    that run between the start and the wait of one, on average. peak_bytes, was_bytes: simulated. reason: why
    none is.
    """

    collectives: int = 0
    apart: int = 0
    between: float = 0.0
    peak_bytes: int = -1
    was_bytes: int = -1
    reason: str = "there are no collectives"

    def __str__(self) -> str:
        if not self.collectives:
            return self.reason
        peak = f"peak {self.peak_bytes}, not {self.was_bytes} bytes"
        return f"{self.apart} of {self.collectives} collectives run beside {self.between:.1f} operators each; {peak}"


def overlap(
    program: Program,
    hints: Mapping[str, Number],
    needs: Callable[[], Callable[[Node], Need]] | None = None,
    most_bytes: int = -1,
) -> tuple[Program, OverlapReport]:
    """The program with collectives that run beside computation.

    program: that works in place. needs: gives what nodes take besides, asked where there are collectives. most_bytes:
    what the peak may be; at least what it is.
    """
    if all(collective_of(node) is None for node in program.nodes):
        return program, OverlapReport()
    if any(node.target in TRANSFERS for node in program.nodes):
        return program, OverlapReport(reason="values go to a file, and come back at their own times")
    apart = _apart(program)
    order = _Order(apart, hints, None if needs is None else needs())
    was = order.peak(order.nodes)
    _Mover(order, max(was, most_bytes)).move()
    nodes = _together([apart.nodes[number] for number in order.nodes], program)
    made = program.replace_nodes(tuple(nodes))
    starts = {node.results()[0]: at for at, node in enumerate(nodes) if is_started(node)}
    waits = {node.operands()[0]: at for at, node in enumerate(nodes) if node.target is WAIT}
    between = sum(waits[token] - starts[token] - 1 for token in starts)
    count = sum(collective_of(node) is not None for node in nodes)
    return made, OverlapReport(count, len(starts), between / max(1, len(starts)), order.peak(order.nodes), was)


def _apart(program: Program) -> Program:
    """The program with a start and a wait for each collective that has them."""
    names = {value.name for value in program.values()}
    storage = max((v.tensor.storage for v in program.values() if v.is_tensor), default=0)
    nodes: list[Node] = []
    for node in program.nodes:
        name = f"under_way_{len(nodes)}"
        while name in names:
            name += "_"
        storage += 1
        both = started_apart(node, Value(name, token_meta(storage))) if collective_of(node) is not None else None
        nodes += (node,) if both is None else both
    return program.replace_nodes(tuple(nodes))


def _together(nodes: Sequence[Node], program: Program) -> list[Node]:
    """The nodes, with one again for each start that is waited for at once."""
    whole = [node for node in program.nodes if collective_of(node) is not None]
    starting = iter(whole)
    found: list[Node] = []
    for node in nodes:
        if collective_of(node) is not None:
            before = next(starting)
        elif node.target is WAIT and is_started(found[-1]) and found[-1].results()[0] is node.operands()[0]:
            found[-1] = before
            continue
        found.append(node)
    return found


class _Order:
    """The order of nodes, what each has to run after, and the peak of any order.

    before: for each node, those that it has to run after. starts: of collectives, in order. wait_of: the wait that
    belongs to a start. start_of: the other way round. shows_outside: of each node, whether others see what it does.
    """

    def __init__(self, program: Program, hints: Mapping[str, Number], need_of: Callable[[Node], Need] | None) -> None:
        self.program = program
        self.nodes = list(range(len(program.nodes)))
        self.before = _before(program)
        self.is_effect = [_has_effect(node) for node in program.nodes]
        outside = program.input_storages()
        self.shows_outside = [_shows(node, outside) for node in program.nodes]
        self.starts = [at for at, node in enumerate(program.nodes) if collective_of(node) is not None]
        tokens = {node.operands()[0]: at for at, node in enumerate(program.nodes) if node.target is WAIT}
        self.wait_of = {
            at: tokens[program.nodes[at].results()[0]] for at in self.starts if is_started(program.nodes[at])
        }
        self.start_of = {wait: start for start, wait in self.wait_of.items()}
        self._look_at_memory(program, hints, need_of)

    def _look_at_memory(
        self, program: Program, hints: Mapping[str, Number], need_of: Callable[[Node], Need] | None
    ) -> None:
        sizes, outside = storage_bytes(program, hints), program.input_storages()
        touching: dict[int, list[int]] = {}
        makes: dict[int, int] = {}
        scratch = np.zeros(len(program.nodes), dtype=np.int64)
        for at, node in enumerate(program.nodes):
            need = NOTHING if need_of is None else need_of(node)
            scratch[at] = need.scratch_bytes
            for place, value in enumerate(node.outputs):
                if value is not None and value.is_tensor and value.tensor.storage not in {*makes, *outside}:
                    makes[value.tensor.storage] = at
                    sizes[value.tensor.storage] += need.kept_by(place)
            for value in (*node.results(), *node.operands()):
                if value.is_tensor and value.tensor.storage in makes:
                    touching.setdefault(value.tensor.storage, []).append(at)
        held = [storage for storage in touching if sizes[storage]]
        returned = program.output_storages()
        self._scratch = scratch
        self._makes = np.array([makes[storage] for storage in held], dtype=np.int64)
        self._sizes = np.array([sizes[storage] for storage in held], dtype=np.int64)
        self._stays = np.array([storage in returned for storage in held], dtype=bool)
        self._touching = np.array([at for storage in held for at in touching[storage]], dtype=np.int64)
        counts = np.array([0, *(len(touching[storage]) for storage in held)], dtype=np.int64)
        self._firsts = np.cumsum(counts)[:-1]

    def peak(self, nodes: Sequence[int]) -> int:
        """The simulated peak where nodes run in this order; `analysis.liveness.simulate_peak` gives the same."""
        if not len(self._sizes):
            return int(self._scratch.max(initial=0))
        count, order = len(nodes), np.asarray(nodes)
        at = np.empty(count, dtype=np.int64)
        at[order] = np.arange(count)
        ends = np.where(self._stays, count, np.maximum.reduceat(at[self._touching], self._firsts) + 1)
        change = np.zeros(count + 1, dtype=np.int64)
        np.add.at(change, at[self._makes], self._sizes)
        np.subtract.at(change, ends, self._sizes)
        return int((np.cumsum(change[:-1]) + self._scratch[order]).max())


class _Mover:
    """Moves starts up and waits down, while the peak stays below `most`."""

    def __init__(self, order: _Order, most: int) -> None:
        self._order, self._most = order, most
        self._number = {start: number for number, start in enumerate(order.starts)}

    def move(self) -> None:
        """Make all moves that can be made."""
        for beside in _ROUNDS:
            for start in self._order.starts:
                if start in self._order.wait_of:
                    self._try(self._earlier, start, beside)
                    self._try(self._later, self._order.wait_of[start], beside)
        made = self._written_last()
        if made is not None and self._order.peak(made) <= self._most:
            self._order.nodes = made

    def _written_last(self) -> list[int] | None:
        """The order with what shows outside behind the last wait: before that, a collective may fail."""
        order, nodes = self._order, self._order.nodes
        last = max(at for at, node in enumerate(nodes) if node in order.start_of or node in self._number)
        behind: set[int] = set()
        before: list[int] = []
        for node in nodes[: last + 1]:
            if order.shows_outside[node] or not behind.isdisjoint(order.before[node]):
                if node in order.start_of or node in self._number:
                    return None
                behind.add(node)
            else:
                before.append(node)
        return (
            [*before, *(node for node in nodes[: last + 1] if node in behind), *nodes[last + 1 :]] if behind else None
        )

    def _try(self, move: Callable[[int, int, float], list[int] | None], node: int, beside: int) -> None:
        """Make as much of a move as the peak allows."""
        for share in (1.0, 0.5, 0.25):
            made = move(node, beside, share)
            if made is None:
                return
            if self._order.peak(made) <= self._most:
                self._order.nodes = made
                return

    def _earlier(self, start: int, beside: int, share: float) -> list[int] | None:
        """The order with a start in front of what it need not run after, which it takes along what it needs.

        beside: how many collectives may be under way then. share: of what it could pass.
        """
        order, nodes = self._order, self._order.nodes
        end = nodes.index(start)
        needed, along, passed = set(order.before[start]), [start], list[int]()
        at = end
        while at > 0:
            node = nodes[at - 1]
            other = order.start_of.get(node)
            if other is not None and self._number[start] - self._number[other] > beside:
                break
            if node in needed:
                if order.is_effect[node] or other is not None:
                    break
                needed |= order.before[node]
                along.append(node)
            else:
                passed.append(node)
            at -= 1
        if not passed:
            return None
        if share < 1:
            return self._with_less_passed(at, end, along, passed, share)
        return [*nodes[:at], *reversed(along), *reversed(passed), *nodes[end + 1 :]]

    def _with_less_passed(
        self, first: int, end: int, along: Sequence[int], passed: Sequence[int], share: float
    ) -> list[int] | None:
        """The same, where the start stays behind some of what it could pass."""
        nodes, stay = self._order.nodes, {*passed[int(len(passed) * share) :]}
        if len(stay) == len(passed):
            return None
        last = max(at for at in range(first, end) if nodes[at] in stay)
        inner = nodes[last + 1 : end + 1]
        moved = set(along)
        return [
            *nodes[: last + 1],
            *(node for node in inner if node in moved),
            *(node for node in inner if node not in moved),
            *nodes[end + 1 :],
        ]

    def _later(self, wait: int, beside: int, share: float) -> list[int] | None:
        """The order with a wait, and what has to run after it, behind what need not.

        beside: how many collectives may be under way then. share: of what could run before it.
        """
        order, nodes = self._order, self._order.nodes
        first = nodes.index(wait)
        start = self._number[order.start_of[wait]]
        moved, kept, begun = {wait}, list[int](), 0
        behind, at = [wait], first + 1
        ends: list[tuple[int, int]] = []  # how many nodes are kept, and moved
        while at < len(nodes):
            node = nodes[at]
            is_behind = not moved.isdisjoint(order.before[node])
            other = order.start_of.get(node)
            if node in self._number:
                begun += 1
                if is_behind or begun > beside:
                    break
            if is_behind or (other is not None and self._number[other] > start):
                moved.add(node)
                behind.append(node)
            else:
                kept.append(node)
                ends.append((len(kept), len(behind)))
            at += 1
        if not ends:
            return None
        count, left = ends[max(0, int(len(ends) * share) - 1)]
        return [*nodes[:first], *kept[:count], *behind[:left], *nodes[first + count + left :]]


def _before(program: Program) -> list[set[int]]:
    """For each node, by number: those that it has to run after, as they stand. What follows from others is left out."""
    made: dict[Value, int] = {}
    symbols: dict[str, int] = {}
    of_symbols = made_symbols(program)
    outside = program.input_storages()
    written: dict[int, int] = {}  # by storage, who wrote it last
    read: dict[int, list[int]] = {}  # and who has read it since
    effect = check = draw = -1
    found: list[set[int]] = []
    for at, node in enumerate(program.nodes):
        needs = {made[value] for value in node.operands() if value in made}
        names = [*node.symbols(), *(name for value in node.results() for name in meta_symbols(value.meta))]
        needs |= {symbols[name] for name in names if name in symbols}
        symbols.update(dict.fromkeys(of_symbols.get(node, ()), at))
        facts = facts_of(node.target)
        storages = {value.tensor.storage for value in written_values(node) if value.is_tensor}
        if not is_view(node):
            for value in node.operands():
                storage = value.tensor.storage if value.is_tensor else None
                if storage is not None and storage not in storages:
                    needs.add(written.get(storage, -1))
                    read.setdefault(storage, []).append(at)
        for storage in storages:
            needs.update(read.pop(storage, ()))
            needs.add(written.get(storage, -1))
            written[storage] = at
        if not storages.isdisjoint(outside):
            needs.add(check)
        if _has_effect(node):
            needs.add(effect)
            effect = at
        if can_fail(node):
            check = at
        if facts.draws or facts.reads_generator:
            needs.add(draw)
            draw = at
        made.update(dict.fromkeys(node.results(), at))
        needs.discard(-1)
        needs.discard(at)
        found.append(needs)
    return found


def _shows(node: Node, outside: Collection[int]) -> bool:
    """Whether a node writes an input, or does something outside the program."""
    if isinstance(node.target, Prim) and node.target.outside:
        return True
    return any(value.is_tensor and value.tensor.storage in outside for value in written_values(node))


def _has_effect(node: Node) -> bool:
    """Whether a node keeps its place among those that have effects. A wait is bound by the memory it speaks of."""
    return facts_of(node.target).effect and node.target is not WAIT
