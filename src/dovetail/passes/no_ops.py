"""Remove views, copies and conversions that change nothing.

A view whose result looks exactly like its operand is its operand. A copy whose result has the operand's layout is its
operand, too, as long as neither can be written: the operand's memory must belong to this program alone (not to an
input, which its owner may write later) and neither may be returned to the caller.

What is written over all of a tensor, in its layout and memory of its own, is the new tensor; it may be returned.

    v = view(a, [4, 8])   (a is [4, 8] already)   ->   a
    c = clone(b)          (b is made and used up here) ->   b
    d = slice_scatter(a, b, 0, 0, 4)   (b is [4, 8] as well)   ->   b

Source: copy elision, as in any functional compiler. Cost: O(nodes + operands).
"""

from __future__ import annotations

from dataclasses import dataclass

from dovetail.ir.draft import Draft
from dovetail.ir.program import Node, Program, TensorMeta, Value, values_in
from dovetail.ops.facts import facts_of, is_copy, is_reinterpretation
from dovetail.ops.writing_forms import written_over_all


@dataclass(frozen=True, slots=True)
class NoOpReport:
    """removed: (removed value, the value that stands for it) names, in program order."""

    removed: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        return f"removed {len(self.removed)} views and copies that change nothing"


def remove_no_ops(program: Program) -> tuple[Program, NoOpReport]:
    """The program without nodes that give back their operand."""
    held_outside = program.input_storages() | program.output_storages() | _reread_storages(program)
    returned = set(values_in(program.outputs))
    draft = Draft(program)
    removed: list[tuple[str, str]] = []

    made: set[Value] = set()  # each alone in new memory
    for original in program.nodes:
        node = draft.rewritten(original)
        source, result = _same_as(node, held_outside), node.outputs[0] if node.outputs else None
        stays = bool(original.outputs) and original.outputs[0] in returned
        over = written_over_all(node)
        if over in made and over.tensor.storage not in held_outside and _lies_like(result, over):
            source, stays = over, False
        made.update(_alone_in_new_memory(node))
        if source is None or result is None or stays:
            draft.nodes.append(node)
            continue
        draft.merge(result, source)
        removed.append((result.name, source.name))
    return draft.finish(), NoOpReport(tuple(removed))


def _same_as(node: Node, held_outside: frozenset[int]) -> Value | None:
    """The operand that the node's only result equals, if it does."""
    if len(node.outputs) != 1 or node.unpack or not facts_of(node.target).is_pure or is_reinterpretation(node.target):
        return None
    (result,) = node.outputs
    source = next((value for value in node.operands()), None)
    if result is None or source is None or not result.is_tensor or not source.is_tensor:
        return None
    if result.tensor.storage == source.tensor.storage:
        return source if _same_region(result.tensor, source.tensor) else None
    private = {result.tensor.storage, source.tensor.storage}.isdisjoint(held_outside)
    if private and is_copy(node.target) and _same_region(result.tensor, source.tensor):
        return source
    return None


def _lies_like(result: Value | None, source: Value) -> bool:
    return result is not None and result.is_tensor and _same_region(result.tensor, source.tensor)


def _alone_in_new_memory(node: Node) -> list[Value]:
    """The results that begin a storage which no operand and no other result is in."""
    held = [value.tensor.storage for value in (*node.operands(), *node.results()) if value.is_tensor]
    made = [value for value in node.results() if value.is_tensor and value.tensor.offset == 0]
    return [value for value in made if held.count(value.tensor.storage) == 1]


def _reread_storages(program: Program) -> frozenset[int]:
    """Storages that a conjugate view shows otherwise: a copy of such a view is what takes the conjugate."""
    nodes = [node for node in program.nodes if is_reinterpretation(node.target)]
    return frozenset(value.tensor.storage for node in nodes for value in node.results())


def _same_region(a: TensorMeta, b: TensorMeta) -> bool:
    return a.layout() == b.layout() and a.offset == b.offset
