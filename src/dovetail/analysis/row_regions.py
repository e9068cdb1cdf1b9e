"""The part of a program that may run on one block of rows after the other, so that a large matrix never exists whole.

A *region* begins at a product that makes far more of each row than it reads, the scores of a large vocabulary say, and
holds every node that reads such a large value: in a training step these are the loss, its gradient, and the products
that take the gradient on. What leaves it is small: sums over the rows, and rows as narrow as those that came in.

The gradient must not depend on the loss itself, as it does not where a step calls `loss.backward()`: each block
would need all blocks first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from dovetail.ir.program import Node, Program, Value, values_in
from dovetail.ops.arguments import arguments_of
from dovetail.ops.layouts import is_reshaping_view
from dovetail.ops.rows import Rows, RowStep, filled_step, reads_layout_only, row_step, rows_in

_WIDENS = 2  # times as many bytes as it reads of the rows, for a product to begin a region
_LARGE = 4  # parts of the first product's bytes from which on a value is large
_MOST_ROUNDS = 8


@dataclass(frozen=True, slots=True)
class RowRegion:
    """units: into which the rows can be cut. steps: the nodes, in order, and how each runs on a block. entries: values
    from elsewhere that blocks take rows of. exits: results that others read. large_bytes, narrow_bytes: of the first
    product's result and of the rows that it reads.
    """

    units: int
    steps: tuple[tuple[Node, RowStep], ...]
    entries: dict[Value, Rows]
    exits: tuple[Value, ...]
    large_bytes: int
    narrow_bytes: int


def row_regions(program: Program, beginning: Collection[str]) -> Iterator[RowRegion]:
    """The regions of a functional program, for each product that may begin one, the largest first.

    beginning: names of results of products that may.
    """
    uses = _Uses(program.producers(), program.use_counts())
    makers = [node for node in program.nodes if any(value.name in beginning for value in node.results())]
    seeds = [seed for node in makers if (seed := _seed(node, program)) is not None]
    seeds.sort(key=lambda seed: -seed.large_bytes)
    for seed in seeds:
        for units in seed.cuts():
            region = _Finder(program, seed, units, uses).found()
            if region is not None:
                yield region
                break


@dataclass(frozen=True, slots=True)
class _Uses:
    """Who makes each value of a program, and how many read it."""

    producers: Mapping[Value, Node]
    counts: Mapping[Value, int]


@dataclass(frozen=True, slots=True)
class _Seed:
    node: Node
    rows: Value
    large_bytes: int
    narrow_bytes: int
    leads: tuple[int, ...]

    def cuts(self) -> list[int]:
        """In how many units the rows may be: each by itself, or those of one place of the first dimension together."""
        count = self.rows.tensor.shape[0]
        assert isinstance(count, int), "sizes are known"
        return [count, *(lead for lead in self.leads if 1 < lead < count and count % lead == 0)]


def _seed(node: Node, program: Program) -> _Seed | None:
    """What begins with this node if it is a product of rows by a matrix that makes them much wider."""
    named = arguments_of(node)
    rows = named.get("mat1", named.get("self"))
    if "mat2" not in named or not isinstance(rows, Value) or len(node.outputs) != 1:
        return None
    made, read = node.results()[0].tensor, rows.tensor
    sizes = (*made.shape, *read.shape)
    if len(read.shape) != 2 or len(made.shape) != 2 or not all(isinstance(size, int) and size > 0 for size in sizes):
        return None
    large, narrow = made.size_bytes(), read.size_bytes()
    if not isinstance(large, int) or not isinstance(narrow, int) or large < _WIDENS * narrow or made.shape[0] == 1:
        return None
    shown = [other for other in program.nodes if is_reshaping_view(other) and other.operands()[0] is node.outputs[0]]
    leads = dict.fromkeys(
        size for view in shown for size in view.results()[0].tensor.shape[:1] if isinstance(size, int)
    )
    return _Seed(node, rows, large, narrow, tuple(leads))


class _Finder:
    """Grows the region of one product, node by node in program order, until nothing large is read elsewhere."""

    def __init__(self, program: Program, seed: _Seed, units: int, uses: _Uses) -> None:
        self._program = program
        self._seed = seed
        self._units = units
        self._forced: set[Node] = set()
        self._uses = uses

    def found(self) -> RowRegion | None:
        """The region; None where a node that would belong to it cannot run on blocks."""
        for _ in range(_MOST_ROUNDS):
            region = self._grown()
            if region is None:
                return None
            late = self._in_between(region)
            if not late:
                return region
            if late <= self._forced:
                return None
            self._forced |= late
        return None

    def _grown(self) -> RowRegion | None:
        known = dict[Value, Rows]()
        entries = dict[Value, Rows]()
        steps: list[tuple[Node, RowStep]] = []
        sums, large = set[Value](), set[Value]()
        first = rows_in(self._seed.rows.tensor.shape, self._units, 1)
        if first is None:
            return None
        start = self._program.nodes.index(self._seed.node)
        for node in self._program.nodes[start:]:
            is_first = node is self._seed.node
            if not (is_first or node in self._forced or not large.isdisjoint(node.operands())):
                continue
            step = row_step(node, {**known, self._seed.rows: first} if is_first else known, self._units)
            if step is None or not self._takes(step, known, entries, sums, steps):
                return None
            steps.append((node, step))
            for value, rows in zip(node.outputs, step.gives, strict=True):
                if value is None:
                    continue
                if rows is None:
                    sums.add(value)
                else:
                    known[value] = rows
                    if self._is_large(value):
                        large.add(value)
        exits = self._exits(steps)
        if not large.isdisjoint(exits):
            return None
        return RowRegion(self._units, tuple(steps), entries, exits, self._seed.large_bytes, self._seed.narrow_bytes)

    def _takes(
        self,
        step: RowStep,
        known: dict[Value, Rows],
        entries: dict[Value, Rows],
        sums: set[Value],
        steps: list[tuple[Node, RowStep]],
    ) -> bool:
        """Whether a node's operands are there when its block runs; those from elsewhere become entries."""
        for value, rows in step.takes.items():
            if value in sums:
                if rows is not None or not _is_ahead(value, steps):
                    return False
            elif value in known:
                if known[value] != rows:
                    return False
            elif rows is not None:
                made = self._made(value, rows, known)
                if made is not None:
                    if not self._takes(made[1], known, entries, sums, steps):
                        return False
                    steps.append(made)
                    known[value] = rows
                elif entries.setdefault(value, rows) != rows:
                    return False
        return True

    def _made(self, value: Value, rows: Rows, known: dict[Value, Rows]) -> tuple[Node, RowStep] | None:
        """The node that makes a large value which nobody else reads of narrow ones, and how blocks do that."""
        node = self._uses.producers.get(value)
        if node is None or self._uses.counts[value] > 1 or not self._is_large(value):
            return None
        lead = value.tensor.shape[: rows.lead]
        alike = {v: rows for v in node.operands() if v.is_tensor and v.tensor.shape[: rows.lead] == lead}
        step = filled_step(node, rows) or row_step(node, {**alike, **known}, self._units)
        return (node, step) if step is not None and step.gives == (rows,) else None

    def _is_large(self, value: Value) -> bool:
        size = value.tensor.size_bytes()
        return not isinstance(size, int) or size * _LARGE >= self._seed.large_bytes

    def _exits(self, steps: Sequence[tuple[Node, RowStep]]) -> tuple[Value, ...]:
        inside = {node for node, _ in steps}
        made = {value for node in inside for value in node.results()}
        read = {value for node in self._program.nodes if node not in inside for value in node.operands()}
        read.update(values_in(self._program.outputs))
        return tuple(value for node, _ in steps for value in node.results() if value in made & read)

    def _in_between(self, region: RowRegion) -> set[Node]:
        """Nodes outside the region that need something of it, and that it needs."""
        inside = {node for node, _ in region.steps}
        after: set[Node] = set()
        late = {value for node in inside for value in node.results()}
        for node in self._program.nodes:
            if node in inside or reads_layout_only(node.target):
                continue
            if not late.isdisjoint(node.operands()):
                after.add(node)
                late.update(node.results())
        needed: set[Node] = set()
        wanted = {value for node in inside for value in node.operands()}
        for node in reversed(self._program.nodes):
            if node not in inside and not wanted.isdisjoint(node.results()):
                needed.add(node)
                if not reads_layout_only(node.target):
                    wanted.update(node.operands())
        return needed & after


def _is_ahead(value: Value, steps: Sequence[tuple[Node, RowStep]]) -> bool:
    for node, step in steps:
        if value in node.outputs:
            return node.outputs.index(value) in (step.ahead or {})
    return False
