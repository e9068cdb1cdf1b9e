"""Views of a program that no variable holds: only clusters read them, and for these a view is an address.

A weight that is transposed in the forward half is read in the backward half, say. Such a view does not run. Where the
nodes of a cluster run one by one, those that they read are made first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from dovetail.execute.native.places import shown_addresses
from dovetail.execute.native.rows import Address, RowClaim
from dovetail.execute.native.runs import is_place
from dovetail.ir.program import Node, Program, Value, values_in


@dataclass(frozen=True, slots=True)
class Unmade:
    """addresses: of each view, by the value with a variable whose memory it shows. makers: its node, by the view."""

    addresses: Mapping[Value, Address] = field(default_factory=dict)
    makers: Mapping[Value, Node] = field(default_factory=dict)

    def before(self, nodes: Collection[Node]) -> tuple[Node, ...]:
        """The nodes of views that some nodes read and that are not made by them, in order."""
        within, found = {value for node in nodes for value in node.results()}, dict[Node, None]()

        def add(value: Value) -> None:
            if value in self.makers and value not in within:
                for operand in self.makers[value].operands():
                    add(operand)
                found[self.makers[value]] = None

        for node in nodes:
            for value in node.operands():
                add(value)
        return tuple(found)

    def reads(self, nodes: Mapping[int, Node]) -> dict[Value, int]:
        """The values whose memory nodes read through such views, each with the number of the last one."""
        found: dict[Value, int] = {}
        for at, node in nodes.items():
            for value in node.operands():
                if value in self.addresses:
                    found[self.addresses[value].value] = at
        return found


def unmade_views(program: Program, claims: Mapping[Node, RowClaim], may_show: Callable[[Node], bool]) -> Unmade:
    """The views that only claims of clusters read, or other such views. claims: of all clusters. may_show: whether a
    node may be a view of clusters.
    """
    readers: dict[Value, list[Node]] = {}
    for node in program.nodes:
        for value in node.operands():
            readers.setdefault(value, []).append(node)
    returned = frozenset(values_in(program.outputs))
    makers: dict[Value, Node] = {}
    for node in reversed(program.nodes):
        if not (may_show(node) and is_place(node)):
            continue
        reading = [(each, shown) for shown in node.results() for each in readers.get(shown, [])]
        is_address = all(_reads_address(each, shown, claims) or _makes(each, makers) for each, shown in reading)
        if reading and is_address and returned.isdisjoint(node.results()):
            makers.update(dict.fromkeys(node.results(), node))
    addresses: dict[Value, Address] = {}
    for node in reversed(dict.fromkeys(makers.values())):
        addresses.update(shown_addresses(node, addresses))
    return Unmade(addresses, makers)


def _reads_address(node: Node, value: Value, claims: Mapping[Node, RowClaim]) -> bool:
    """Whether a node is part of a cluster, and does not give the value back as its result."""
    return node in claims and claims[node].into is not value


def _makes(node: Node, views: Collection[Value]) -> bool:
    return any(value in views for value in node.results())
