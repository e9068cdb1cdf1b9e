"""Groups of nodes that one piece of code runs, and when the text of a program forgets values around them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from dovetail.ir.program import Node, Program, Value


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """Nodes in a row that one piece of code runs where it can; where not, they run one by one.

    condition, run and then take the `Names` of the source.

    first, last: numbers of the nodes. condition: an expression, whether the code may be tried. before: nodes among them
    that run first, by their own calls. run: lines that do all; where one raises, nothing was done that running the
    nodes does not do as well. then: lines that follow where all is done, and do not raise. after: how results get
    variables: nodes that run, and values with the one whose variable holds the same. unbound: results without
    variables. restored: nodes before the group whose results only groups read; they run where these nodes run one by
    one, and not in their own place. reads: values that the code reads instead, each with the number of the last node
    that does. fatal: an exception that ends the program, as some of the nodes may have run. listing: for people, what
    runs. taken: values that get memory, and have it when the code has run. own_bytes: what it takes besides meanwhile.
    """

    first: int
    last: int
    condition: Callable[[Any], str]
    before: tuple[Node, ...]
    run: Callable[[Any], list[str]]
    then: Callable[[Any], list[str]]
    after: tuple[Node | tuple[Value, Value], ...]
    unbound: frozenset[Value]
    restored: tuple[Node, ...] = ()
    reads: tuple[tuple[Value, int], ...] = ()
    fatal: Callable[[Any], str] | None = None
    listing: Callable[[], str] = str
    taken: tuple[Value, ...] = ()
    own_bytes: int = 0


def with_later_reads(
    dying: Mapping[int, tuple[Value, ...]], groups: Mapping[int, NodeGroup], restored: Collection[Node]
) -> dict[int, tuple[Value, ...]]:
    """After which nodes values are forgotten: what groups read as well is later, and restored values are extra."""
    last = {value: at for at, values in dying.items() for value in values}
    for group in groups.values():
        for value, at in group.reads:
            if value in last:
                last[value] = max(last[value], at)
    for node in restored:
        for value in node.results():
            last.pop(value, None)
    return _by_node(last)


def forgotten_within(program: Program, group: NodeGroup, restored: Collection[Node]) -> dict[int, tuple[Value, ...]]:
    """When restored values are forgotten where the nodes of a group run one by one."""
    last = {value: group.first for node in group.restored for value in node.results()}
    for at in range(group.first, group.last + 1):
        node = program.nodes[at]
        if node in restored:
            last.update(dict.fromkeys(node.results(), at))
        last.update({value: at for value in node.operands() if value in last})
    return _by_node(last)


def _by_node(last: Mapping[Value, int]) -> dict[int, tuple[Value, ...]]:
    """The values, by the number of the last node that reads them."""
    found: dict[int, list[Value]] = {}
    for value, at in last.items():
        found.setdefault(at, []).append(value)
    return {at: tuple(values) for at, values in found.items()}
