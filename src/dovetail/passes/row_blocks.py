"""Run nodes that treat rows one by one on blocks of rows, where what they hand to each other is large, bit by bit.

    g = nll_loss_backward(one, p, y)         g0 = nll_loss_backward(one, p[0:2], y[0:2])
    d = _log_softmax_backward(g, p)    ->    d0 = slice_scatter(p, _log_softmax_backward(g0, p[0:2]), 0, 0, 2)
                                             g1 = nll_loss_backward(one, p[2:4], y[2:4])
                                             d = slice_scatter(d0, _log_softmax_backward(g1, p[2:4]), 0, 2, 4)

The gradient that the loss hands on never exists whole, and the result lies where what was read lay, once the program
works in place: one matrix as large as the scores instead of two. The chains are found by `analysis.row_chains`; which
operators keep their bits on blocks, `ops.exact_rows` says. What no operand has room for gets memory of its own.

Bitwise. The program is kept as it was unless the peak, once it works in place, is lower.
Cost: O(nodes + operands), and re-inplacing for each of the largest chains.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice

from dovetail.analysis.infer import MetaInference
from dovetail.analysis.row_chains import RowChain, row_chains
from dovetail.ir.draft import Draft
from dovetail.ir.program import Node, Program, Value
from dovetail.passes.block_writer import BlockWriter
from dovetail.passes.inplace import PlanMemory
from dovetail.torch_compat.rows_alone import block_sizes

_MOST_BLOCKS = 16
_MOST_CHAINS = 4
_BLOCK_BYTES = 1 << 19  # calls cost little next to what moves so many bytes
_PART_OF_PEAK = 20  # from which on a value is worth it
_EVEN = 16  # blocks have a multiple of so many rows, where there are enough


@dataclass(frozen=True, slots=True)
class RowBlocksReport:
    """chains: by the largest value of each that does not exist whole any more, in how many blocks it is made.

    saved_bytes: by how much the peak is lower, once all works in place.
    """

    chains: Mapping[str, int]
    saved_bytes: int = 0

    def __str__(self) -> str:
        if not self.chains:
            return "nothing runs on blocks of rows"
        made = "; ".join(f"{name} is made in {count} blocks of rows" for name, count in self.chains.items())
        return f"{made}: {self.saved_bytes} bytes less at the peak"


def row_blocks(
    program: Program, infer: MetaInference, memory: PlanMemory | None = None
) -> tuple[Program, RowBlocksReport]:
    """The program in which chains of nodes run on blocks of rows; itself where that does not lower the peak.

    memory: where later passes find how the result works in place.
    """
    plans = memory or PlanMemory()
    first = peak = plans.peak_bytes(program)
    done: dict[str, int] = {}
    least = max(peak // _PART_OF_PEAK, 2 * _BLOCK_BYTES)
    for chain in islice(row_chains(program, least), _MOST_CHAINS):
        sizes = _block_sizes(chain)
        if len(sizes) < 2 or any(node not in program.nodes for node, _ in chain.steps):
            continue
        changed = _Blocks(program, chain, infer).written(sizes)
        if changed is not None and plans.peak_bytes(changed) < peak:
            program, peak = changed, plans.peak_bytes(changed)
            done[chain.inner[0].name] = len(sizes)
    return program, RowBlocksReport(done, first - peak)


def _block_sizes(chain: RowChain) -> list[int]:
    """How many units each block has."""
    large = max(size for value in chain.inner if isinstance(size := value.tensor.size_bytes(), int))
    count = min(-(-large // _BLOCK_BYTES), _MOST_BLOCKS, chain.units)
    size = -(-chain.units // count)
    size = -(-size // _EVEN) * _EVEN if size > _EVEN else size
    return block_sizes(chain.units, size)


class _Blocks:
    """Writes the blocks of one chain. wholes: what each exit is by now, its rows in one dimension."""

    def __init__(self, program: Program, chain: RowChain, infer: MetaInference) -> None:
        self._program = program
        self._chain = chain
        self._draft = Draft(program)
        self._writer = BlockWriter(self._draft, infer)
        self._wholes: dict[Value, Value] = {}

    def written(self, sizes: list[int]) -> Program | None:
        """The program; None where what blocks give does not lie as what it stands for."""
        inside = {node for node, _ in self._chain.steps}
        last = self._chain.steps[-1][0]
        for node in self._program.nodes:
            if node not in inside:
                self._draft.take(node)
            elif node is last and not self._write(sizes):
                return None
        return self._draft.finish()

    def _write(self, sizes: list[int]) -> bool:
        """Append all blocks."""
        self._at(self._chain.steps[0][0])
        units = self._chain.units
        flat = {value: self._writer.flat(value, rows, units) for value, rows in self._chain.entries.items()}
        free = self._free_entries()
        for value, rows in self._chain.exits.items():
            place = next((entry for entry in free if self._fits(entry, value)), None)
            free = [entry for entry in free if entry is not place]
            self._wholes[value] = flat[place] if place is not None else self._writer.room(value, rows, units)
        start = 0
        for size in sizes:
            self._block(start, size, flat)
            start += size
        return all(self._writer.stands_for(value, self._wholes[value]) for value in self._chain.exits)

    def _free_entries(self) -> list[Value]:
        """Values that the program made and that only the chain reads from here on."""
        inside = {node for node, _ in self._chain.steps}
        after = self._program.nodes[self._program.nodes.index(self._chain.steps[-1][0]) :]
        read = {v.tensor.storage for n in after if n not in inside for v in n.operands() if v.is_tensor}
        kept = read | self._program.input_storages() | self._program.output_storages()
        return [value for value in self._chain.entries if value.tensor.storage not in kept]

    def _fits(self, entry: Value, exit_: Value) -> bool:
        """Whether the rows of a result can lie where those of an operand lie."""
        rows, others = self._chain.exits[exit_], self._chain.entries[entry]
        a, b = entry.tensor, exit_.tensor
        alike = (a.dtype, a.device, a.shape[others.lead :]) == (b.dtype, b.device, b.shape[rows.lead :])
        return alike and others.each == rows.each and a.is_contiguous() and not others.is_turned and not rows.is_turned

    def _block(self, start: int, count: int, flat: Mapping[Value, Value]) -> None:
        """All nodes of the chain on the rows of some units."""
        here: dict[Value, Value] = {}
        self._at(self._chain.steps[0][0])
        for value, rows in self._chain.entries.items():
            here[value] = self._writer.cut(flat[value], rows, start, count, name=value.name)
        for node, step in self._chain.steps:
            self._at(node)
            block = step.block(count).with_operands(lambda value: here.get(value) or self._draft.current(value))
            made = self._writer.again(block)
            pairs = zip(node.outputs, made.outputs, strict=True)
            here.update({value: part for value, part in pairs if value is not None and part is not None})
        for value, rows in self._chain.exits.items():
            self._wholes[value] = self._writer.put(
                self._wholes[value], here[value], rows, start, count, name=value.name
            )

    def _at(self, node: Node) -> None:
        self._writer.origin, self._writer.phase = node.origin, node.phase
