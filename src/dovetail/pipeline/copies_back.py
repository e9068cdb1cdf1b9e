"""Let the forward program carry out the writes to its inputs that autograd does not follow.

A recorded program returns the new contents of an input, and the wrapper copies them. As a `copy_` at the end of the
program, the same write is one that re-inplacing can remove: the work happens in the input's own memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

import torch

from dovetail.ir.calling import CallPlan, WriteBack, is_carried_out
from dovetail.ir.draft import Draft
from dovetail.ir.program import Node, Operand, Program, Stage, TensorMeta, Value, values_in
from dovetail.ir.signature import GradientBase, SharedBytes, WriteKind
from dovetail.ops.facts import hidden_writes, written_values
from dovetail.ops.views import view_node, viewed_meta
from dovetail.torch_compat.dispatch import Overload


def carry_out_writes(forward: Program, plan: CallPlan) -> Program:
    """The program with copies at its end; it returns what they wrote in place of the new contents.

    Left to the wrapper: writes that autograd follows, those to memory that inputs share, and those to inputs whose old
    contents the program returns.
    """
    carries = any(write.kind is not WriteKind.TRACKED for write in plan.writes)
    if not carries or any(isinstance(role, SharedBytes | GradientBase) for role in forward.signature.inputs):
        return forward
    forward = _with_inputs_apart(forward)
    draft = Draft(forward)
    nodes = list(forward.nodes)
    outputs = list(forward.outputs)
    for write in plan.writes:
        new, target = outputs[write.slot], forward.inputs[write.input]
        if write.kind is WriteKind.TRACKED or not isinstance(new, Value) or not target.is_tensor:
            continue
        others = [v for i, o in enumerate(outputs) if i != write.slot and o is not new for v in values_in(o)]
        if any(v.is_tensor and v.tensor.storage == target.tensor.storage for v in others) or new is target:
            continue
        place = _place(write, target, new, draft, nodes)
        if place is None or place.tensor.overlaps_itself():
            continue
        nodes.append(Node(torch.ops.aten.copy_.default, (place, new), outputs=()))
        held: Operand = target if place is target else new
        outputs = [held if operand is new else operand for operand in outputs]
        outputs[write.slot] = place
    return replace(forward, stage=Stage.IN_PLACE, nodes=tuple(nodes), outputs=tuple(outputs))


def _with_inputs_apart(program: Program) -> Program:
    """The program with a storage number of its own for each input.

    Inputs were recorded on one storage where the user's lay on one; which bytes of it they are differs between calls,
    and those that are written share none with others.
    """
    shared = Counter(value.tensor.storage for value in program.inputs if value.is_tensor)
    if all(count == 1 for count in shared.values()):
        return program
    draft = Draft(program)

    def place(value: Value, storage: int) -> None:
        draft.substitute(value, Value(value.name, replace(value.tensor, storage=storage)))

    for value in program.inputs:
        if value.is_tensor and shared[value.tensor.storage] > 1:
            place(value, draft.storage())
    for node in program.nodes:
        first = node.args[0] if node.args else None
        if isinstance(first, Value) and first in draft:
            for value in node.results():
                if value.is_tensor and value.tensor.storage == first.tensor.storage:
                    place(value, draft.current(first).tensor.storage)
        draft.take(node)
    return draft.finish()


def counted_only(forward: Program, plan: CallPlan) -> tuple[int, ...]:
    """Inputs that the program should write, and need not, because they hold the new contents already.

    Their version counters move all the same.
    """
    written = written_inputs(forward, forward.nodes)
    carried = [w.input for w in plan.writes if w.kind is WriteKind.UNTRACKED and is_carried_out(forward, w)]
    return tuple(i for i in dict.fromkeys(carried) if i not in written)


def uncounted(forward: Program, plan: CallPlan) -> tuple[int, ...]:
    """Inputs whose version counters stay, and that operators write that move them: eager mode's do not."""
    carried = [w.input for w in plan.writes if w.kind is WriteKind.HIDDEN and is_carried_out(forward, w)]
    if not carried:
        return ()
    counting = [node for node in forward.nodes if not hidden_writes(node.target, node.args, dict(node.kwargs))]
    written = written_inputs(forward, counting)
    return tuple(index for index in dict.fromkeys(carried) if index in written)


def written_inputs(forward: Program, nodes: Iterable[Node]) -> set[int]:
    """Numbers of the inputs that these nodes of the program write, through views or not."""
    producers = forward.producers()
    written: set[Value] = set()
    for node in nodes:
        written.update(_viewed(value, producers) for value in written_values(node))
    return {index for index, value in enumerate(forward.inputs) if value in written}


def _viewed(value: Value, producers: Mapping[Value, Node]) -> Value:
    """The value that this one is a view of, or the operand that it is after writes."""
    while value in producers:
        first = producers[value].args[0] if producers[value].args else None
        if not isinstance(first, Value) or not first.is_tensor or first.tensor.storage != value.tensor.storage:
            break
        value = first
    return value


def _place(write: WriteBack, target: Value, new: Value, draft: Draft, nodes: list[Node]) -> Value | None:
    """The tensor to copy into: the input or a view of it, whose nodes are appended; None if its layout is not known."""
    made: list[Node] = []
    place = target
    for number, step in enumerate(write.steps):
        is_last = number == len(write.steps) - 1
        if not isinstance(step.target, Overload) or step.kwargs:
            return None
        like: TensorMeta | None = new.tensor if is_last else None
        meta = viewed_meta(step.target, step.index, step.args, place.tensor, like)
        if meta is None:
            return None
        value = Value(draft.name(f"{target.name}_part", 2), meta)
        operands = (place, *step.args)
        made.append(view_node(step.target, step.index, operands, place.tensor, value, Node(step.target, operands)))
        place = value
    nodes += made
    return place
