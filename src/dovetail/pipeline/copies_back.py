"""Let the forward program carry out the writes to its inputs that autograd does not follow.

A recorded program returns the new contents of an input, and the wrapper copies them. As a `copy_` at the end of the
program, the same write is one that re-inplacing can remove: the work happens in the input's own memory.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from dovetail.ir.calling import CallPlan, WriteBack
from dovetail.ir.program import Node, Operand, Program, TensorMeta, Value, values_in
from dovetail.ir.signature import GradientBase, SharedBytes, WriteKind
from dovetail.ops.views import viewed_meta
from dovetail.torch_compat.dispatch import Overload


def carry_out_writes(forward: Program, plan: CallPlan) -> Program:
    """The program with copies at its end; it returns None for what they copy.

    Left to the wrapper: writes that autograd follows or that nothing counts, those to memory that inputs share, and
    those to inputs whose old contents the program returns.
    """
    if any(isinstance(role, SharedBytes | GradientBase) for role in forward.signature.inputs):
        return forward
    names = {value.name for value in forward.inputs}
    names.update(value.name for node in forward.nodes for value in node.results())
    nodes = list(forward.nodes)
    outputs = list(forward.outputs)
    for write in plan.writes:
        new, target = outputs[write.slot], forward.inputs[write.input]
        if write.kind is not WriteKind.UNTRACKED or not isinstance(new, Value) or not target.is_tensor:
            continue
        others = [v for i, o in enumerate(outputs) if i != write.slot and o is not new for v in values_in(o)]
        if any(v.is_tensor and v.tensor.storage == target.tensor.storage for v in others) or new is target:
            continue
        place = _place(write, target, new, names, nodes)
        if place is None or place.tensor.overlaps_itself():
            continue
        nodes.append(Node(torch.ops.aten.copy_.default, (place, new), outputs=()))
        held: Operand = target if place is target else new
        outputs = [held if operand is new else operand for operand in outputs]
        outputs[write.slot] = None
    return replace(forward, nodes=tuple(nodes), outputs=tuple(outputs))


def _place(write: WriteBack, target: Value, new: Value, names: set[str], nodes: list[Node]) -> Value | None:
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
        value = Value(_name(f"{target.name}_part", names), meta)
        outputs = (*(None for _ in range(step.index or 0)), value)
        made.append(Node(step.target, (place, *step.args), outputs=outputs, unpack=step.index is not None))
        place = value
    nodes += made
    return place


def _name(wish: str, names: set[str]) -> str:
    name, count = wish, 1
    while name in names:
        count += 1
        name = f"{wish}_{count}"
    names.add(name)
    return name
