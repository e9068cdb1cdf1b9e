"""Zeros that have no memory are given some, but for those that the caller gets.

Torch's formulas for gradients and tangents make such zeros (`sgn` has one). What operators do with them is decided
above the recorder: what it sees are copies and views, which read any zeros. The program's passes, however, take each
value for memory: they drop copies of it, and write into it.

Source: the kernels of `DispatchKey::ZeroTensor`. Cost: O(nodes).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from dovetail.ir.program import Node, Operand, values_in
from dovetail.ops.facts import with_memory


def nodes_with_memory(nodes: Iterable[Node], outputs: Operand) -> tuple[Node, ...]:
    """The nodes of a functional program. outputs: what it returns, which stays the kind of zeros that it is."""
    held = {value.tensor.storage for value in values_in(outputs) if value.is_tensor}
    return tuple([_with_memory(node, held) for node in nodes])


def _with_memory(node: Node, held: set[int]) -> Node:
    target = with_memory(node.target)
    if target is node.target or any(value.tensor.storage in held for value in node.results()):
        return node
    return replace(node, target=target)
