"""Which nodes backward may run again.

Never: draws, readers of a generator, effects, writes, unknown operators, nodes with data-dependent result sizes, and
nodes that read or compute numbers. By default only cheap nodes run again: pointwise operators, views, copies, and
operators that create a tensor from numbers alone.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from dovetail.ir.program import Node
from dovetail.ops.facts import facts_of, is_copy, writes_of


class Mark(enum.Enum):
    """What the user or a pass asks for one node.

    MUST_SAVE: backward never runs it again. MUST_RECOMPUTE: its results are never saved; without effect on a node that
    cannot run again, a draw say.
    """

    MUST_SAVE = "must save"
    MUST_RECOMPUTE = "must recompute"


@dataclass(frozen=True, slots=True)
class Policy:
    """recompute: "cheap" or "all". marks: for single nodes, whatever `recompute` says.

    only_what_eager_holds: compute again only from inputs and returned tensors that eager would keep for backward. The
    caller may let others go in between, or change them, as he may in eager.
    """

    recompute: str = "cheap"
    marks: Mapping[Node, Mark] = field(default_factory=dict)
    only_what_eager_holds: bool = False

    def allows(self, node: Node) -> bool:
        """Whether a node that can run again may."""
        mark = self.marks.get(node)
        if mark is not None:
            return mark is Mark.MUST_RECOMPUTE
        return self.recompute == "all" or is_cheap(node)


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
