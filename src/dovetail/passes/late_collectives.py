"""Run collectives that take memory as late as they may: those that gather, above all.

    w = gather_into(e, part); g = mm(d, x); h = mm(g, y)           g = mm(d, x); h = mm(g, y)
    scatter_in(s, h)                                         ->    w = gather_into(e, part)
    r = mm(c, w)                                                   scatter_in(s, h); r = mm(c, w)

Eager mode gathers weights ahead, so that they arrive while it computes; until they are read they take memory. Here a
collective that makes more than it frees waits until its result is read, or the next effect comes: the order of
collectives stands. What only it reads comes along, if that is made of inputs alone. `passes.overlap` starts it earlier
again, where there is room.

Bitwise: the same operators on the same operands. The program is kept as it was if the peak would be higher. Cost:
O(nodes) for each collective, and re-inplacing, twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dovetail.analysis.reads import is_view, readers_of
from dovetail.ir.made_symbols import made_symbols
from dovetail.ir.program import Node, Program, Value
from dovetail.ops.collectives import collective_of
from dovetail.ops.facts import facts_of, writes_of
from dovetail.passes.collection import collection_paused


@dataclass(frozen=True, slots=True)
class LateCollectivesReport:
    """moved: how many collectives run later. collectives: how many there are."""

    moved: int
    collectives: int

    def __str__(self) -> str:
        return f"{self.moved} of {self.collectives} collectives run later"


@collection_paused()
def late_collectives(program: Program, weigh: Callable[[Program], int]) -> tuple[Program, LateCollectivesReport]:
    """The program with collectives that take memory as late as they may run.

    program: functional, but for copies into its inputs at its end. weigh: the peak of a program.
    """
    collectives = [node for node in program.nodes if collective_of(node) is not None]
    if not collectives:
        return program, LateCollectivesReport(0, 0)
    later, moved = list(program.nodes), 0
    readers = readers_of(program)
    fixed, inputs = frozenset(made_symbols(program)), program.input_storages()
    for collective in reversed(collectives):
        at = later.index(collective)
        along = _along(later[: at + 1], readers, fixed, inputs)
        if _growth(along, program, readers) > 0:
            order = _moved(later, at, along)
            moved += order is not later
            later = order
    made = program.replace_nodes(tuple(later))
    if not moved or weigh(made) > weigh(program):
        return program, LateCollectivesReport(0, len(collectives))
    return made, LateCollectivesReport(moved, len(collectives))


def _along(
    nodes: list[Node], readers: Mapping[Value, list[Node | None]], fixed: frozenset[Node], inputs: frozenset[int]
) -> dict[Node, None]:
    """The last of these nodes, with those before that nobody else needs, and that read nothing but inputs."""
    found = _of_inputs(_only_for(nodes, readers, fixed), inputs)
    while True:  # those that have lost a reader go, and so on
        fewer = _of_inputs(_only_for([node for node in nodes if node in found], readers, fixed), inputs)
        if len(fewer) == len(found):
            return found
        found = fewer


def _only_for(
    nodes: list[Node], readers: Mapping[Value, list[Node | None]], fixed: frozenset[Node]
) -> dict[Node, None]:
    """The last of these nodes, with those before that only it needs; the last first."""
    found = {nodes[-1]: None}
    for node in reversed(nodes[:-1]):
        if not node.results() or node in fixed or not facts_of(node.target).is_pure or writes_of(node):
            continue
        if all(reader in found for value in node.results() for reader in readers.get(value, [None])):
            found[node] = None
    return found


def _of_inputs(found: Mapping[Node, None], inputs: frozenset[int]) -> dict[Node, None]:
    """Those of these nodes that read inputs, and each other's results; and the first."""
    last, *others = found
    kept: dict[Node, None] = {}
    made: set[Value] = set()
    for node in reversed(others):
        read = [value for value in node.operands() if value.is_tensor]
        if all(value in made or value.tensor.storage in inputs for value in read):
            kept[node] = None
            made.update(node.results())
    return kept | {last: None}


def _growth(along: Mapping[Node, None], program: Program, readers: Mapping[Value, list[Node | None]]) -> int:
    """How many bytes more are alive once these nodes have run. 0 where a size is not known."""
    made = {value.tensor.storage: value for node in along for value in node.results() if value.is_tensor}
    left = [v for v in made.values() if any(reader not in along for reader in readers.get(v, ()))]
    read = {v.tensor.storage: v for node in along for v in node.operands() if v.is_tensor}
    outside = program.input_storages() | made.keys()
    freed = [
        value
        for storage, value in read.items()
        if storage not in outside and all(reader in along for reader in readers.get(value, ()))
    ]
    sizes = [value.tensor.size_bytes() for value in (*left, *freed)]
    known = [size for size in sizes if isinstance(size, int)]
    return sum(known[: len(left)]) - sum(known[len(left) :]) if len(known) == len(sizes) else 0


def _moved(nodes: list[Node], at: int, along: Mapping[Node, None]) -> list[Node]:
    """The nodes with some of them, the last of which stands at a position, right before what has to run after them."""
    moved = dict.fromkeys(node for node in nodes[: at + 1] if node in along)
    made = {value for node in moved for value in node.results()}
    passed: list[Node] = []
    for node in nodes[at + 1 :]:
        needs = not made.isdisjoint(node.operands())
        if facts_of(node.target).effect or writes_of(node) or (needs and not is_view(node)):
            break
        if needs:
            moved[node] = None
            made.update(node.results())
        else:
            passed.append(node)
    if not passed:
        return nodes
    gone = {*moved, *passed}
    first = next(number for number, node in enumerate(nodes) if node in moved)
    before = [node for node in nodes[first:at] if node not in moved]
    return [*nodes[:first], *before, *passed, *moved, *(node for node in nodes[at + 1 :] if node not in gone)]
