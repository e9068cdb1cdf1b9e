"""The effects of changed layouts: which nodes still give the values that they gave before.

A node that reads such a value gets a new description. Its result is the old value if that looks the same; if it is a
view, or its layout changes, too, there is a new value, whose readers are updated next. Some readers cannot be updated;
they are reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from dovetail.analysis.new_nodes import NodeMaker
from dovetail.ir.made_symbols import made_symbols
from dovetail.ir.program import Node, Program, Value, values_in
from dovetail.ops.facts import written_values
from dovetail.torch_compat.dispatch import Overload, schema_of

REASONS = {
    "RETURNED": "the program returns {value}, whose strides and memory must be those of eager",
    "WRITTEN": "{value} is written",
    "OPAQUE-READER": "{value} is read by {target}, which may depend on strides",
    "READS-PLACE": "{value} is read by {target}, which addresses memory by strides",
    "VIEW-NEEDS-CONTIGUOUS": "{value} is read by {target}, which cannot be run on memory with gaps",
}


@dataclass(frozen=True, slots=True)
class Followed:
    """The nodes that read what lies otherwise and what stands for their results. The other nodes are as they were."""

    nodes: Mapping[Node, Node]


@dataclass(frozen=True, slots=True)
class Blocked:
    """A reader that cannot follow. sources: those of the given values that its operand comes from."""

    code: str
    because: str
    sources: frozenset[Value]


def follow(program: Program, changed: Mapping[Value, Value], make: NodeMaker) -> Followed | Blocked:
    """What becomes of the readers of `changed` (what a value was -> what it is, with the same numbers in it).

    Nothing that the program returns may change, nor may what lies otherwise be written. Cost: a run on fakes for each
    node that has a changed operand.
    """
    follower = _Follower(program, changed, make)
    for node in program.nodes:
        if follower.is_touched(node):
            blocked = follower.step(node)
            if blocked is not None:
                return blocked
    returned = next((value for value in values_in(program.outputs) if value in follower.current), None)
    if returned is not None:
        return follower.blocked("RETURNED", [returned])
    return Followed(follower.nodes)


class _Follower:
    """current: what stands for a value that has a different layout. nodes: what stands for the nodes that read one."""

    def __init__(self, program: Program, changed: Mapping[Value, Value], make: NodeMaker) -> None:
        self.current = dict(changed)
        self.nodes: dict[Node, Node] = {}
        self._sources = {value: frozenset((value,)) for value in changed}
        self._storages = {value.tensor.storage for value in changed}
        self._makes_sizes = frozenset(made_symbols(program))
        self._make = make

    def is_touched(self, node: Node) -> bool:
        return any(value in self.current for value in node.operands())

    def step(self, node: Node) -> Blocked | None:
        """Go past a node that reads a changed value; or say why that is not possible."""
        touched = [value for value in node.operands() if value in self.current]
        target = node.target
        if any(value in self.current for value in written_values(node)):
            return self.blocked("WRITTEN", touched)
        if not isinstance(target, Overload) or schema_of(target).namespace != "aten" or node in self._makes_sizes:
            return self.blocked("OPAQUE-READER", touched, target)
        if schema_of(target).name.startswith("as_strided"):
            return self.blocked("READS-PLACE", touched, target)
        moved = node.with_operands(lambda value: self.current.get(value, value))
        try:
            again = self._make.reinferred(moved)
        except (RuntimeError, ValueError, TypeError, NotImplementedError):
            return self.blocked("VIEW-NEEDS-CONTIGUOUS", touched, target)
        sources = frozenset[Value]().union(*(self._sources[value] for value in touched))
        kept: list[Value | None] = []
        for old, new in zip(node.outputs, again.outputs, strict=True):
            if old is None or new is None or self._is_same(old, new):
                kept.append(old)
                continue
            kept.append(new)
            self.current[old] = new
            self._sources[old] = sources
            if old.is_tensor:
                self._storages.add(old.tensor.storage)
        self.nodes[node] = replace(moved, outputs=tuple(kept))
        return None

    def _is_same(self, old: Value, new: Value) -> bool:
        is_own = not old.is_tensor or old.tensor.storage not in self._storages
        return is_own and self._make.look_alike(old, new)

    def blocked(self, code: str, touched: Iterable[Value], target: object = "") -> Blocked:
        """The reason, with its words."""
        touched = list(touched)
        because = REASONS[code].format(value=touched[0].name, target=target)
        return Blocked(code, because, frozenset[Value]().union(*(self._sources[value] for value in touched)))
