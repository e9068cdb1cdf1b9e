"""Nodes in a row that treat rows one by one, with the same bits on blocks of rows, around values that are large.

What such nodes hand to each other never needs to exist whole: the gradient of a loss by its scores, say, between the
loss and the softmax before it. A chain is what one such value needs: its maker, all that read it, and on from there
as long as large values are read by such nodes only. Unlike the regions of `analysis.row_regions` it holds no
product and no sum over rows, so what leaves a chain may be as large as what is in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from dovetail.analysis.reads import readers_of
from dovetail.ir.program import Node, Program, Value
from dovetail.ops.exact_rows import keeps_bits
from dovetail.ops.facts import writes_of
from dovetail.ops.rows import Rows, RowStep, filled_step, reads_layout_only, row_step, rows_in


@dataclass(frozen=True, slots=True)
class RowChain:
    """units: into which the rows can be cut. steps: the nodes, in program order, and how each runs on a block.

    entries: values from elsewhere that blocks take rows of. inner: large values that only the chain reads. exits:
    results that others read, with their rows.
    """

    units: int
    steps: tuple[tuple[Node, RowStep], ...]
    entries: Mapping[Value, Rows]
    inner: tuple[Value, ...]
    exits: Mapping[Value, Rows]


def row_chains(program: Program, least_bytes: int) -> Iterator[RowChain]:
    """Chains around each value of so many bytes, the largest first; every value is inside one at most."""
    finder = _Finder(program, least_bytes)
    seen = set[Value]()
    for value in finder.large_values():
        if value in seen:
            continue
        chain = finder.around(value)
        if chain is not None:
            seen.update(chain.inner)
            yield chain


@dataclass(slots=True)
class _Growing:
    units: int
    steps: dict[Node, RowStep] = field(default_factory=dict)
    known: dict[Value, Rows] = field(default_factory=dict)
    inner: dict[Value, None] = field(default_factory=dict)

    def copy(self) -> _Growing:
        return _Growing(self.units, dict(self.steps), dict(self.known), dict(self.inner))


class _Finder:
    def __init__(self, program: Program, least_bytes: int) -> None:
        self._program = program
        self._least_bytes = least_bytes
        self._readers = readers_of(program)
        self._producers = program.producers()
        self._position = {node: at for at, node in enumerate(program.nodes)}

    def large_values(self) -> list[Value]:
        """Tensors of rows that a node makes, the largest first."""
        made = [v for n in self._program.nodes for v in n.results() if v.is_tensor and self._is_large(v)]
        return sorted(made, key=lambda value: -_bytes_of(value))

    def around(self, value: Value) -> RowChain | None:
        """The chain around a value; None where it must exist whole."""
        for lead in range(len(value.tensor.shape) - 1, 0, -1):
            units = 1
            for size in value.tensor.shape[:lead]:
                assert isinstance(size, int), "sizes of large values are known"
                units *= size
            rows = rows_in(value.tensor.shape, units, lead)
            found = self._with_inner(_Growing(units, known={value: rows}), value) if rows and units > 1 else None
            if found is not None:
                return self._grown(found)
        return None

    def _grown(self, chain: _Growing) -> RowChain | None:
        """The chain with all that it can hold."""
        tried = set(chain.inner)
        while True:
            near = [
                v for n in chain.steps for v in (*n.operands(), *n.results()) if v not in tried and v in chain.known
            ]
            value = next((value for value in near if value.is_tensor and self._is_large(value)), None)
            if value is None:
                return self._finished(chain)
            tried.add(value)
            chain = self._with_inner(chain.copy(), value) or chain

    def _with_inner(self, chain: _Growing, value: Value) -> _Growing | None:
        """The chain in which a value whose rows are known is not needed whole; None where it is."""
        maker = self._producers.get(value)
        readers = self._readers.get(value, [None])
        if maker is None or None in readers or not self._add_maker(chain, maker, value):
            return None
        chain.inner[value] = None
        for node in sorted({n for n in readers if n is not None}, key=self._position.__getitem__):
            if not self._add(chain, node):
                return None
        return chain if self._is_closed(chain) else None

    def _add_maker(self, chain: _Growing, maker: Node, value: Value) -> bool:
        if maker in chain.steps:
            return True
        rows = chain.known[value]
        lead = value.tensor.shape[: rows.lead]
        alike = {v: rows for v in maker.operands() if v.is_tensor and v.tensor.shape[: rows.lead] == lead}
        step = filled_step(maker, rows) or row_step(maker, {**alike, **self._of(chain, maker)}, chain.units)
        return step is not None and self._take(chain, maker, step)

    def _add(self, chain: _Growing, node: Node) -> bool:
        if node in chain.steps:
            return True
        step = row_step(node, self._of(chain, node), chain.units)
        return step is not None and self._take(chain, node, step)

    def _of(self, chain: _Growing, node: Node) -> dict[Value, Rows]:
        return {value: chain.known[value] for value in node.operands() if value in chain.known}

    def _take(self, chain: _Growing, node: Node, step: RowStep) -> bool:
        """Add a node, if it fits what is known of rows."""
        if not keeps_bits(node, step):
            return False
        given = {value: rows for value, rows in zip(node.outputs, step.gives, strict=True) if value is not None}
        for value, rows in (*step.takes.items(), *given.items()):
            if rows is None:
                if value in chain.known and not reads_layout_only(node.target):
                    return False
            elif chain.known.setdefault(value, rows) != rows:
                return False
        chain.steps[node] = step
        return True

    def _is_closed(self, chain: _Growing) -> bool:
        """Whether all nodes can run where the last one stands: nobody before reads or writes what they make or read."""
        places = [self._position[node] for node in chain.steps]
        made = {value for node in chain.steps for value in node.results()}
        between = self._program.nodes[min(places) : max(places) + 1]
        others = (node for node in between if node not in chain.steps)
        return all(made.isdisjoint(node.operands()) and not writes_of(node) for node in others)

    def _finished(self, chain: _Growing) -> RowChain | None:
        nodes = sorted(chain.steps, key=self._position.__getitem__)
        made = [value for node in nodes for value in node.results()]
        own = {value.tensor.storage for value in made} - {v.tensor.storage for v in self._taken(chain, set(made))}
        exits = {v: chain.known[v] for v in made if any(r not in chain.steps for r in self._readers.get(v, ()))}
        if any(value.tensor.storage not in own for value in exits):
            return None
        read = dict.fromkeys(v for v in self._taken(chain, set(made)) if v in chain.known)
        entries = {value: chain.known[value] for value in read}
        return RowChain(chain.units, tuple((n, chain.steps[n]) for n in nodes), entries, tuple(chain.inner), exits)

    def _taken(self, chain: _Growing, made: set[Value]) -> Sequence[Value]:
        return [v for n, step in chain.steps.items() for v in step.takes if v.is_tensor and v not in made]

    def _is_large(self, value: Value) -> bool:
        shape = value.tensor.shape
        return len(shape) > 1 and all(isinstance(n, int) for n in shape) and _bytes_of(value) >= self._least_bytes


def _bytes_of(value: Value) -> int:
    size = value.tensor.size_bytes()
    return size if isinstance(size, int) else 0
