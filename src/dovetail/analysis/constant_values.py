"""Which values of a program are the same in every call, once some of its inputs are."""

from __future__ import annotations

from collections.abc import Collection

from dovetail.ir.program import Node, Program, Value, meta_symbols
from dovetail.ops.facts import facts_of, written_values


def constant_values(program: Program, names: Collection[str]) -> frozenset[Value]:
    """The inputs of these names, and what is computed from them alone.

    Left out: what draws or has effects, what does not give the same bits each time, sizes that are symbols, and
    everything in memory that a node writes. Cost: O(nodes + operands).
    """
    written = {value.tensor.storage for node in program.nodes for value in written_values(node) if value.is_tensor}
    known = {value for value in program.inputs if value.name in names and _is_fixed(value, written)}
    for node in program.nodes:
        if is_repeatable(node) and node.operands() and known.issuperset(node.operands()):
            results = node.results()
            if all(_is_fixed(value, written) for value in results):
                known.update(results)
    return frozenset(known)


def is_repeatable(node: Node) -> bool:
    """Whether the node gives the same bits whenever its operands are the same, and does nothing else."""
    facts = facts_of(node.target)
    return facts.is_pure and facts.repeats


def _is_fixed(value: Value, written: Collection[int]) -> bool:
    return value.is_tensor and value.tensor.storage not in written and not any(True for _ in meta_symbols(value.meta))
