"""Which nodes read the contents of which values, when a functional program runs.

A view reads nothing: it shows its operand in another way. `copy(a, b)` and `fill(a, 1)` read the layout of their first
operand only, so what only they read need not hold its contents; nor need what a node reads whose results nobody needs.
Of the first operand of `slice_scatter` the part that is replaced is not read, nor what is replaced in its result before
anybody reads that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from dovetail.analysis.buffers import Buffers, Owner, Read, lies_in
from dovetail.analysis.destinations import Destinations
from dovetail.analysis.pairs import overlaps_itself
from dovetail.ir.prim import Prim
from dovetail.ir.program import Node, Program, Target, TensorMeta, Value, values_in
from dovetail.ir.sizes import difference, shifted
from dovetail.ops.collectives import collective_of
from dovetail.ops.facts import facts_of, ignores_first_contents, is_copy
from dovetail.ops.placed_results import lets_go_of_operands


def note_reads(buffers: Buffers, destinations: Destinations, program: Program) -> None:
    """Note every read of contents, by nodes and by the caller.

    The caller finds new contents in an input that is copied into, so that he reads no old ones there.
    """
    parts, backs = destinations.parts, set(destinations.copy_backs)
    needed, holes = _needed_values(program), _holes(program, destinations)
    for node in program.nodes:
        if needed.isdisjoint(node.results()) and not _asks_for_contents(node):
            continue
        skips_first = ignores_first_contents(node.target) or node in backs or is_view(node)
        whole = Read(node)
        if not skips_first and node not in parts:
            for value in node.operands():
                buffers.add_read(value, whole)
            continue
        for place, operand in enumerate((*node.args, *(a for _, a in node.kwargs))):
            if place == 0 and skips_first:
                continue
            read = Read(node, holes[node]) if place == 0 and node in parts else whole
            for value in values_in(operand):
                buffers.add_read(value, read)
    for value in values_in(program.outputs):
        if value.is_tensor and not _shows_new_contents(value, buffers, destinations):
            buffers.add_read(value, Read(None))


def _shows_new_contents(value: Value, buffers: Buffers, destinations: Destinations) -> bool:
    """Whether what the caller sees of a value is what was copied there.

    Where not all of his memory is copied into, nothing else writes the rest of it; of a donated input, anything may.
    """
    covered = destinations.covered.get(value.tensor.storage)
    if covered is None or buffers.buffer_of(value).owner is Owner.CALLER:
        return covered is not None
    return any(lies_in(buffers.region(value), buffers.region_in_place(whole)) for whole in covered)


def readers_of(program: Program) -> dict[Value, list[Node | None]]:
    """The nodes that have each value as an operand, None for the caller."""
    found: dict[Value, list[Node | None]] = {}
    for node in program.nodes:
        for value in node.operands():
            found.setdefault(value, []).append(node)
    for value in values_in(program.outputs):
        found.setdefault(value, []).append(None)
    return found


def last_check_of(program: Program) -> Node | None:
    """The last node that can fail by our doing."""
    checks = [node for node in program.nodes if can_fail(node)]
    return checks[-1] if checks else None


def can_fail(node: Node) -> bool:
    """Whether a node may be there to fail: it is a check, or nobody knows what it is for."""
    if isinstance(node.target, Prim) and node.target.outside:
        return False
    if collective_of(node) is not None:  # a barrier
        return False
    facts = facts_of(node.target)
    return facts.effect and not (facts.writes or facts.draws or node.outputs)


def is_view(node: Node) -> bool:
    """Whether all the node does is to show its first operand otherwise."""
    first = node.args[0] if node.args else None
    meta = first.meta if isinstance(first, Value) else None
    if not isinstance(meta, TensorMeta):
        return False
    is_shown = False
    for value in node.outputs:
        shown = value.meta if value is not None else None
        if isinstance(shown, TensorMeta):
            if shown.storage != meta.storage:
                return False
            is_shown = True
    return is_shown and not facts_of(node.target).writes


def _asks_for_contents(node: Node) -> bool:
    """Whether it matters what a node reads, even where nobody needs what it gives: it draws, say, or fails."""
    is_fraction = all(not v.is_tensor or v.tensor.dtype.is_floating_point for v in node.results())
    cannot_fail = is_view(node) or is_copy(node.target) or (facts_of(node.target).pointwise and is_fraction)
    return not (facts_of(node.target).is_pure and cannot_fail)


def only_result(node: Node) -> Value | None:
    """The result of a node that gives one tensor; None for any other."""
    result = node.outputs[0] if len(node.outputs) == 1 and not node.unpack else None
    return result if result is not None and result.is_tensor else None


def other_operands(node: Node, written: Value) -> tuple[Value, ...]:
    """The tensors that the node reads besides the one at the place that it writes."""
    values = [value for value in node.operands() if value.is_tensor]
    values.remove(written)
    return tuple(values)


def _needed_values(program: Program) -> set[Value]:
    """Values whose contents make a difference, not only their layout."""
    needed = set(values_in(program.outputs))
    for node in reversed(program.nodes):
        if needed.isdisjoint(node.results()) and not _asks_for_contents(node):
            continue
        if ignores_first_contents(node.target):
            needed.update(values_in((*node.args[1:], *(operand for _, operand in node.kwargs))))
        else:
            needed.update(node.operands())
    return needed


def _may_overlap_itself(meta: TensorMeta) -> bool:
    is_static = all(isinstance(number, int) for number in (*meta.shape, *meta.stride))
    return meta.overlaps_itself() if is_static else overlaps_itself(meta).may_overlap


def _holes(program: Program, destinations: Destinations) -> dict[Node, tuple[TensorMeta, ...]]:
    """For each node that replaces a part: the parts of its base that make no difference, on the base's storage."""
    found: dict[Node, tuple[TensorMeta, ...]] = {}
    if not destinations.parts:
        return found
    readers = readers_of(program)
    for node in reversed(program.nodes):
        use = destinations.parts.get(node)
        if use is None:
            continue
        if _may_overlap_itself(use.base.tensor):
            found[node] = ()  # what is replaced is read through other elements
            continue
        found[node] = (use.meta,)
        (result,), base = node.outputs, use.base.tensor
        assert result is not None, "a part replaced gives a tensor"
        reader = _only_reader(result, readers)
        following = destinations.parts.get(reader) if reader is not None else None
        shows = following is not None and following.base.tensor.storage == result.tensor.storage
        if following is None or not shows or result.tensor.layout() != base.layout():
            continue
        for hole in found[following.node]:
            offset = shifted(base.offset, difference(hole.offset, result.tensor.offset))
            found[node] += (replace(hole, storage=base.storage, offset=offset),)
    return found


def _only_reader(value: Value, readers: Mapping[Value, Sequence[Node | None]]) -> Node | None:
    """The one node that reads a value, or a view of it of which nobody else reads anything."""
    while True:
        (node, *others) = readers.get(value, (None,))
        if others or node is None or not is_view(node):
            return None if others else node
        shown = [result for result in node.results() if result in readers]
        if len(shown) != 1:
            return None
        value = shown[0]


def keepers_of(program: Program) -> dict[int, list[Node]]:
    """Nodes that may keep a tensor that they read, by its storage."""
    keepers: dict[int, list[Node]] = {}
    let_go: dict[int, bool] = {}  # by operator
    for node in program.nodes:
        lets_go = let_go.get(id(node.target))
        if lets_go is None:
            lets_go = let_go[id(node.target)] = lets_go_of_operands(node)
        if not lets_go:
            for value in node.operands():
                if value.is_tensor:
                    keepers.setdefault(value.tensor.storage, []).append(node)
    return keepers


def nodes_by_operator(program: Program) -> list[tuple[Target, list[Node]]]:
    """Nodes of each operator, so that what does not depend on operands is asked once."""
    found: dict[int, tuple[Target, list[Node]]] = {}
    for node in program.nodes:
        known = found.get(id(node.target))
        if known is None:
            known = found[id(node.target)] = (node.target, [])
        known[1].append(node)
    return list(found.values())
