"""Run each node as late as possible, where that keeps no more alive.

    a = mul(x, 2); b = mul(y, 2); c = mul(z, 2)          a = mul(x, 2); d = add(a, 1); out(d)
    d = add(a, 1); e = add(b, 1); f = add(c, 1)    ->    b = mul(y, 2); e = add(b, 1); out(e)
    out(d); out(e); out(f)                               c = mul(z, 2); f = add(c, 1); out(f)

A node is delayed until its results are needed, if the operands that it would keep alive meanwhile are hardly larger
than the results. Among several that are needed at once, the one with the most temporary memory runs first. Draws,
effects and writes keep their order and their places, and readers of memory that is written run before the write.
Source: demand-driven list scheduling; Sethi and Ullman 1970 for the order of operands.

The program is kept as it was unless the peak, once it works in place, is lower. Cost: O(nodes + operands), and
re-inplacing, twice.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from dovetail.analysis.destinations import find_destinations
from dovetail.ir.made_symbols import made_symbols
from dovetail.ir.program import Node, Program, Value, values_in
from dovetail.ops.facts import facts_of, writes_of, written_values
from dovetail.passes.inplace import PlanMemory

# What is kept alive may be a little larger than what is made: by a number beside a tensor.
_NEARLY = 0.95


@dataclass(frozen=True, slots=True)
class SinkReport:
    """moved: how many nodes stand elsewhere. saved_bytes: by how much the peak is lower, once all works in place."""

    moved: int
    saved_bytes: int

    def __str__(self) -> str:
        return f"moved {self.moved} nodes to just before their use: {self.saved_bytes} bytes less at the peak"


def sink(program: Program, dying: Collection[int] = (), memory: PlanMemory | None = None) -> tuple[Program, SinkReport]:
    """The program in demand-driven order; itself where the peak would not be lower.

    dying: numbers of inputs that nobody else holds: what waits for them keeps them alive. memory: where other passes
    find how programs work in place.
    """
    later, plans = alap_schedule(program, dying), memory or PlanMemory()
    moved = sum(a is not b for a, b in zip(program.nodes, later.nodes, strict=True))
    saved = plans.peak_bytes(program, dying) - plans.peak_bytes(later, dying) if moved else 0
    return (later, SinkReport(moved, saved)) if saved > 0 else (program, SinkReport(0, 0))


def alap_schedule(program: Program, dying: Collection[int] = ()) -> Program:
    """The program in demand-driven order. dying: numbers of inputs that nobody else holds."""
    return program.replace_nodes(tuple(_Order(program, dying).nodes))


class _Order:
    def __init__(self, program: Program, dying: Collection[int]) -> None:
        self.nodes: list[Node] = []
        self.waiting: dict[Value, Node] = {}
        self.excess: dict[Node, int] = {}  # what making the results of a waiting node takes beyond their own bytes
        destinations = find_destinations(program)
        self.at_home = destinations.chain.keys() | destinations.into.keys()
        self.readers_of_storage: dict[int, list[Node]] = {}
        self.done: set[Node] = set()
        self.last_read = _last_reads(program)
        self.first_read = _first_reads(program)
        given = {program.inputs[number].tensor.storage for number in dying}
        self.held = {value for value in program.inputs if value.is_tensor and value.tensor.storage not in given}
        fixed = made_symbols(program).keys()
        for at, node in enumerate(program.nodes):
            if node not in fixed and self._may_wait(node, at):
                self._defer(node)
            else:
                self._run(node)
        self._run_makers(values_in(program.outputs))
        for node in program.nodes:
            self._run(node)  # results that nobody reads

    def _may_wait(self, node: Node, at: int) -> bool:
        if not facts_of(node.target).is_pure or writes_of(node):
            return False
        results = [value for value in node.results() if value.is_tensor]
        needed_at = min((self.first_read.get(value, at) for value in results), default=at)
        kept = 0
        for value in set(node.operands()):
            if value.is_tensor and value not in self.held and self.last_read.get(value, -1) < needed_at:
                size = value.tensor.size_bytes()
                if not isinstance(size, int):
                    return False
                kept += size
        return kept * _NEARLY <= self._bytes_of(node)

    def _bytes_of(self, node: Node) -> int:
        """Bytes of the results, but for those whose size is not known, and those that an input has room for."""
        results = [value.tensor for value in node.results() if value.is_tensor]
        sizes = [meta.size_bytes() for meta in results if meta.storage not in self.at_home]
        return sum(size for size in sizes if isinstance(size, int))

    def _defer(self, node: Node) -> None:
        need = held = 0
        for maker in self._makers(node):
            need = max(need, held + self._bytes_of(maker) + self.excess[maker])
            held += self._bytes_of(maker)
        self.excess[node] = max(need - self._bytes_of(node), held)
        self.waiting.update(dict.fromkeys(node.results(), node))
        for value in node.operands():
            if value.is_tensor:
                self.readers_of_storage.setdefault(value.tensor.storage, []).append(node)

    def _run(self, node: Node) -> None:
        """Run a node after what it needs, without recursion."""
        stack = [node]
        while stack:
            top = stack[-1]
            if top in self.done:
                stack.pop()
                continue
            first = [n for n in self._before(top) if n not in self.done and n is not top]
            if first:
                stack += reversed(first)
                continue
            self.done.add(top)
            self.nodes.append(top)
            stack.pop()

    def _makers(self, node: Node) -> list[Node]:
        """Waiting nodes that make what this node reads, in the order in which they are to run."""
        makers = dict.fromkeys(self.waiting[value] for value in node.operands() if value in self.waiting)
        return sorted((maker for maker in makers if maker not in self.done), key=lambda n: -self.excess[n])

    def _before(self, node: Node) -> list[Node]:
        """Waiting nodes that make what this node reads, or read what it writes."""
        found = self._makers(node)
        for value in written_values(node):
            found += self.readers_of_storage.get(value.tensor.storage, ())
        return found

    def _run_makers(self, values: Iterable[Value]) -> None:
        for value in values:
            if value in self.waiting:
                self._run(self.waiting[value])


def _last_reads(program: Program) -> dict[Value, int]:
    found = {value: at for at, node in enumerate(program.nodes) for value in node.operands()}
    found.update(dict.fromkeys(values_in(program.outputs), len(program.nodes)))
    return found


def _first_reads(program: Program) -> dict[Value, int]:
    found = dict.fromkeys(values_in(program.outputs), len(program.nodes))
    for at in range(len(program.nodes) - 1, -1, -1):
        found.update(dict.fromkeys(program.nodes[at].operands(), at))
    return found
