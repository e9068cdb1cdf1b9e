"""Which nodes backward may run again.

Never: draws, readers of a generator, effects, writes, unknown operators, nodes with data-dependent result sizes, and
nodes that read or compute numbers. By default only cheap nodes run again: pointwise operators, views, copies, and
operators that create a tensor from numbers alone.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from dovetail.ir.program import Node
from dovetail.ops.facts import facts_of, is_copy, writes_of


class Mark(enum.Enum):
    """What the user or a pass asks for one node.

    MUST_SAVE: it never runs again. MUST_RECOMPUTE: its results are never saved; without effect on a node that cannot
    run again, a draw say. SAVE: it runs again only where a limit asks for it. RECOMPUTE: its work counts as nothing.
    """

    MUST_SAVE = "MUST_SAVE"
    MUST_RECOMPUTE = "MUST_RECOMPUTE"
    SAVE = "SAVE"
    RECOMPUTE = "RECOMPUTE"


@dataclass(frozen=True, slots=True)
class Policy:
    """recompute: "cheap" or "all". marks: for single nodes, whatever `recompute` says.

    only_what_eager_holds: compute again only from inputs and returned tensors that eager would keep for backward. The
    caller may let others go in between, or change them, as he may in eager.
    """

    recompute: str = "cheap"
    marks: Mapping[Node, Mark] = field(default_factory=dict)
    only_what_eager_holds: bool = False

    def may_hold(self) -> frozenset[int]:
        """Storages that may be held for backward though eager would not hold them: what is read for a wish."""
        wished = [node for node, mark in self.marks.items() if mark is Mark.RECOMPUTE]
        return frozenset(value.tensor.storage for node in wished for value in node.operands() if value.is_tensor)

    def allows(self, node: Node) -> bool:
        """Whether a node that can run again may."""
        mark = self.marks.get(node)
        if mark is not None:
            return mark in (Mark.MUST_RECOMPUTE, Mark.RECOMPUTE)
        return self.recompute == "all" or is_cheap(node)

    def cost(self, node: Node, work: int) -> int:
        """What running a node again counts for. work: what it is."""
        return 0 if self.marks.get(node) is Mark.RECOMPUTE else work

    def under_need(self) -> Policy:
        """What holds where the limit cannot be kept otherwise: wishes to save are given up."""
        return replace(self, marks={node: mark for node, mark in self.marks.items() if mark is not Mark.SAVE})


def can_run_again(node: Node, fixed: Collection[Node]) -> bool:
    """Whether running the node once more gives the same bits and nothing else. fixed: nodes that make sizes."""
    facts = facts_of(node.target)
    if not facts.is_pure or not facts.repeats or writes_of(node) or node in fixed or not node.results():
        return False
    return all(value.is_tensor for value in (*node.operands(), *node.results()))


def is_cheap(node: Node) -> bool:
    """Whether the node costs no more than reading its operands and writing its results once."""
    return (
        facts_of(node.target).pointwise
        or is_copy(node.target)
        or is_view(node)
        or not any(value.is_tensor for value in node.operands())
    )


def is_view(node: Node) -> bool:
    """Whether every result lies in the memory of the one tensor that the node reads."""
    storages = {value.tensor.storage for value in (*node.operands(), *node.results()) if value.is_tensor}
    return len(set(node.operands())) == 1 and len(storages) == 1 and bool(node.results())
