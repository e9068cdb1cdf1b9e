"""Run the large end of a model on one block of rows after the other, so that its scores never exist whole.

    scores = mm(h, w)                        s0 = mm(h[0:2], w);  g0 = grad(s0);  dw0 = mm(t(g0), h[0:2])
    g = grad(scores)                   ->    s1 = mm(h[2:4], w);  g1 = grad(s1);  dw = addmm(dw0, t(g1), h[2:4])
    dw = mm(t(g), h);  dh = mm(g, w2)        dh = cat(mm(g0, w2), mm(g1, w2))

For a vocabulary of 128,000 the scores, their logarithms and their gradient are the peak of a training step; what goes
in and out of them is a hundred times narrower. Sums over rows become sums of sums, so results differ by rounding:
the pass runs where `numerics="fast"` allows that. What the region is, `analysis.row_regions` says.

Blocks get as many rows as make the scores of one block as large as what all rows are computed from, or half as large as
the sums over rows (the gradient of the last layer's weight), and at least 32 rows.
The program is kept as it was where its peak would rise.

Source: Hsu et al., "Liger Kernel: Efficient Triton Kernels for LLM Training" (2024), for losses; here any chain of
        operators that treat rows one by one.
Cost:   O(nodes) for each product that widens its rows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import torch

from dovetail.analysis.infer import MetaInference
from dovetail.analysis.liveness import simulate_peak
from dovetail.analysis.row_regions import RowRegion, row_regions
from dovetail.ir.draft import Draft
from dovetail.ir.program import Node, Origin, Program, Value
from dovetail.ir.sizes import Number
from dovetail.ops.facts import facts_of
from dovetail.ops.rows import RowStep, dtype_of_sums, reads_layout_only
from dovetail.passes.block_writer import BlockWriter

aten = torch.ops.aten

_MOST_BLOCKS = 32
_FEWEST_ROWS = 32


@dataclass(frozen=True, slots=True)
class ChunkRow:
    """A region that runs in blocks. name: of the value that does not exist whole any more. origin: its line."""

    name: str
    blocks: int
    rows: int
    large_bytes: int
    origin: str

    def __str__(self) -> str:
        return (
            f"{self.name} ({self.large_bytes} bytes, {self.origin}) is made in {self.blocks} blocks of {self.rows} rows"
        )


@dataclass(frozen=True, slots=True)
class ChunkReport:
    """regions: what runs in blocks."""

    regions: tuple[ChunkRow, ...] = ()

    def __str__(self) -> str:
        return "; ".join(map(str, self.regions)) or "nothing runs in blocks of rows"


def chunk_rows(
    program: Program, infer: MetaInference, hints: Mapping[str, Number], least_bytes: int = 0
) -> tuple[Program, ChunkReport]:
    """The program in which the largest products of rows, and all that reads them, run on blocks of rows.

    hints: a number for each size symbol. least_bytes: smaller products stay whole. The results differ by rounding.
    """
    found: list[ChunkRow] = []
    names = {value.name for value in program.values()}  # products within blocks are not cut again
    while True:
        better = _one_more(program, names, infer, hints, least_bytes)
        if better is None:
            return program, ChunkReport(tuple(found))
        program, row = better
        found.append(row)


def _one_more(
    program: Program, names: Collection[str], infer: MetaInference, hints: Mapping[str, Number], least_bytes: int
) -> tuple[Program, ChunkRow] | None:
    """The program with one more region in blocks, the largest that does not raise the peak.

    It may lower it though it does not seem to: updates of weights run earlier later on, and work in place.
    """
    for region in row_regions(program, names):
        sizes = _block_sizes(region)
        if len(sizes) < 2 or region.large_bytes < least_bytes:
            continue
        changed = _Chunker(program, region, infer).chunked(sizes)
        if changed is not None and _peak(changed, hints) <= _peak(program, hints):
            first = region.steps[0][0]
            name, origin = first.results()[0].name, str(first.origin)
            return changed, ChunkRow(name, len(sizes), sizes[0] * _rows_per_unit(region), region.large_bytes, origin)
    return None


def _peak(program: Program, hints: Mapping[str, Number]) -> int:
    return simulate_peak(program, hints).peak_bytes


def _block_sizes(region: RowRegion) -> list[int]:
    """How many units each block has."""
    wanted = -(-region.large_bytes // max(region.narrow_bytes, _sum_bytes(region) // 2, 1))
    most = max(region.units * _rows_per_unit(region) // _FEWEST_ROWS, 1)
    count = max(min(wanted, _MOST_BLOCKS, most, region.units), 1)
    size = -(-region.units // count)
    return [min(size, region.units - start) for start in range(0, region.units, size)]


def _sum_bytes(region: RowRegion) -> int:
    """Bytes of the sums over rows, which are there while blocks run."""
    sums = [
        v
        for n, step in region.steps
        for v, rows in zip(n.outputs, step.gives, strict=True)
        if v is not None and rows is None
    ]
    sizes = [value.tensor.size_bytes() for value in sums if value in region.exits]
    return sum(size for size in sizes if isinstance(size, int))


def _rows_per_unit(region: RowRegion) -> int:
    rows = region.steps[0][1].gives[0]
    return rows.each if rows is not None else 1


class _Chunker:
    """Writes the blocks of one region. sums, parts: of each exit, what the blocks so far have given."""

    def __init__(self, program: Program, region: RowRegion, infer: MetaInference) -> None:
        self._program = program
        self._region = region
        self._draft = Draft(program)
        self._writer = BlockWriter(self._draft, infer)
        self._inside = {node for node, _ in region.steps}
        self._sums: dict[Value, Value] = {}
        self._parts: dict[Value, list[Value]] = {}
        divisors = [node.outputs[1] for node, step in region.steps if step.divisor == "second"]
        self._wanted = {*region.exits, *divisors}
        self._there: set[Value] = set()

    def chunked(self, sizes: list[int]) -> Program | None:
        """The program; None where what blocks give does not lie as what it stands for."""
        before, after = self._around()
        if before is None:
            return None
        for node in before:
            self._take_early(node)
        ahead = self._ahead()
        self._writer.origin = Origin()
        units = self._region.units
        entries = {value: self._writer.flat(value, rows, units) for value, rows in self._region.entries.items()}
        start = 0
        for size in sizes:
            self._block(start, size, entries, ahead)
            start += size
        for node, step in self._region.steps:
            self._writer.origin = node.origin
            if not all(self._settle(value, place, node, step) for place, value in enumerate(node.outputs)):
                return None
        for node in after:
            self._draft.take(node)
        return self._draft.finish()

    # --- around -----------------------------------------------------------------------------------------------

    def _around(self) -> tuple[list[Node] | None, list[Node]]:
        """The nodes before the blocks, those that blocks need among them; and those after. None where they stay."""
        nodes = self._program.nodes
        start = nodes.index(self._region.steps[0][0])
        needed: set[Node] = set()
        wanted = {value for node in self._inside for value in node.operands()}
        for node in reversed(nodes[start:]):
            if node not in self._inside and not wanted.isdisjoint(node.results()):
                needed.add(node)
                if not reads_layout_only(node.target):
                    wanted.update(node.operands())
        early = [node for node in nodes[start:] if node in needed]
        there = {value for node in (*nodes[:start], *early) for value in node.results()}.union(self._program.inputs)
        fits = all(facts_of(n.target).is_pure and (there.issuperset(n.operands()) or _is_number(n)) for n in early)
        self._there = there
        later = [node for node in nodes[start:] if node not in needed and node not in self._inside]
        return ([n for n in (*nodes[:start], *early) if n not in self._inside] if fits else None), later

    def _take_early(self, node: Node) -> None:
        """Append a node; one that only looks at the shape of a number that is not there yet gets another number."""
        made = next((value for value in node.operands() if value not in self._there), None)
        if made is None:
            self._draft.take(node)
            return
        meta = made.tensor
        self._writer.origin = node.origin
        kind = (("dtype", meta.dtype), ("device", meta.device), ("pin_memory", False))
        like = self._writer.call(aten.full.default, ([], 0), kind, name=made.name)
        self._draft.nodes.append(
            node.with_operands(lambda value: like if value is made else self._draft.current(value))
        )

    def _ahead(self) -> dict[Value, Value]:
        """The sums that blocks take from all rows."""
        found: dict[Value, Value] = {}
        read = {value for node in self._inside for value in node.operands()}
        for node, step in self._region.steps:
            self._writer.origin = node.origin
            for place, known in (step.ahead or {}).items():
                value = node.outputs[place]
                if value is not None and value in read:
                    found[value] = known.make(self._writer.call)
        return found

    # --- blocks -----------------------------------------------------------------------------------------------

    def _block(self, start: int, count: int, entries: Mapping[Value, Value], ahead: Mapping[Value, Value]) -> None:
        """All nodes of the region on the rows of some units."""
        here: dict[Value, Value] = dict(ahead)
        cut: dict[Value, Value] = {}

        def operand(value: Value, step: RowStep) -> Value:
            if value in here:
                return here[value]
            rows = step.takes.get(value)
            if rows is None:
                return self._draft.current(value)
            if value not in cut:
                cut[value] = self._writer.cut(entries[value], rows, start, count, name=value.name)
            return cut[value]

        for node, step in self._region.steps:
            self._writer.origin = node.origin
            block = step.block(count).with_operands(lambda value, step=step: operand(value, step))  # type: ignore[misc]
            total = self._sums.get(node.outputs[0]) if node.outputs[0] is not None else None
            adds = step.adds if total is not None and total.tensor.dtype == node.results()[0].tensor.dtype else None
            if adds is not None:
                block = replace(block, target=adds, args=(total, *block.args))
            made = self._writer.again(block)
            for value, rows, part in zip(node.outputs, step.gives, made.outputs, strict=True):
                if value is None or part is None:
                    continue
                if rows is not None:
                    here[value] = part
                    if value in self._wanted:
                        self._parts.setdefault(value, []).append(part)
                elif value in self._wanted:
                    self._sums[value] = part if adds is not None else self._added(value, part)

    def _added(self, value: Value, part: Value) -> Value:
        """The sum of the blocks so far, in a dtype that is wide enough."""
        before, dtype = self._sums.get(value), dtype_of_sums(part.tensor.dtype)
        if before is not None:
            return self._writer.call(aten.add.Tensor, (before, part), name=value.name)
        return part if part.tensor.dtype == dtype else self._converted(part, dtype)

    def _converted(self, value: Value, dtype: torch.dtype) -> Value:
        return self._writer.call(aten._to_copy.default, (value,), (("dtype", dtype),), name=value.name)

    # --- what leaves ------------------------------------------------------------------------------------------

    def _settle(self, value: Value | None, place: int, node: Node, step: RowStep) -> bool:
        """Let what the blocks gave stand for a result that others read. False where it lies otherwise."""
        if value is None or value not in self._region.exits:
            return True
        rows = step.gives[place]
        if rows is None:
            whole = self._sums[value]
            if step.divisor is not None and place == 0:
                second = node.outputs[1] if step.divisor == "second" else None
                divisor = self._sums[second] if second is not None else step.divisor
                target = aten.div.Tensor if isinstance(divisor, Value) else aten.div.Scalar
                whole = self._writer.call(target, (whole, divisor), name=value.name)
            if whole.tensor.dtype != value.tensor.dtype:
                whole = self._converted(whole, value.tensor.dtype)
        else:
            whole = self._writer.joined(self._parts[value], rows, name=value.name)
        return self._writer.stands_for(value, whole)


def _is_number(node: Node) -> bool:
    """Whether a node only looks at the shape of a tensor without dimensions."""
    return reads_layout_only(node.target) and not node.operands()[0].tensor.shape
