"""Run each node as late as possible, where that keeps no more alive.

    a = mul(x, 2); b = mul(y, 2); c = mul(z, 2)          a = mul(x, 2); d = add(a, 1); out(d)
    d = add(a, 1); e = add(b, 1); f = add(c, 1)    ->    b = mul(y, 2); e = add(b, 1); out(e)
    out(d); out(e); out(f)                               c = mul(z, 2); f = add(c, 1); out(f)

A node waits until somebody needs its results, if the operands that it would keep alive meanwhile are hardly larger
than they are. Draws, effects and writes keep their order and their places, and what reads memory that is written runs
before the write. Source: demand-driven list scheduling. Cost: O(nodes + operands).
"""

from __future__ import annotations

from collections.abc import Iterable

from dovetail.ir.program import Node, Program, Value, made_symbols, values_in
from dovetail.ops.facts import facts_of, writes_of

# What is kept alive may be a little larger than what is made: by a number beside a tensor.
_NEARLY = 0.95


def run_late(program: Program) -> Program:
    """The program in demand-driven order."""
    return program.replace_nodes(tuple(_Order(program).nodes))


class _Order:
    def __init__(self, program: Program) -> None:
        self.nodes: list[Node] = []
        self.waiting: dict[Value, Node] = {}
        self.readers_of_storage: dict[int, list[Node]] = {}
        self.done: set[Node] = set()
        self.last_read = _last_reads(program)
        self.first_read = _first_reads(program)
        self.held = {value for value in program.inputs if value.is_tensor}
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
        made = [value.tensor.size_bytes() for value in results]
        return kept * _NEARLY <= sum(size for size in made if isinstance(size, int))

    def _defer(self, node: Node) -> None:
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

    def _before(self, node: Node) -> list[Node]:
        """Waiting nodes that make what this node reads, or read what it writes."""
        found = [self.waiting[value] for value in node.operands() if value in self.waiting]
        for place in writes_of(node):
            for value in values_in(node.args[place]) if place < len(node.args) else ():
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
