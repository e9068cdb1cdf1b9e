"""Forward and backward of a split as one program, as they run one after the other: for what they hold together.

    forward(x, w) -> loss, a        backward(a, g) -> w.grad        ->    one(x, w, g) -> loss, w.grad

Neither program is ever run: they are there for `analysis.liveness` and for reports.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from types import MappingProxyType

import torch

from dovetail.analysis.copied_gradients import copied_gradients
from dovetail.ir.draft import Draft
from dovetail.ir.program import Node, Operand, Phase, Program, TensorMeta, Value, values_in
from dovetail.ir.signature import (
    InputMutation,
    InputRole,
    OutputRole,
    Residual,
    Signature,
    Tangent,
    UserOutput,
    WriteKind,
)
from dovetail.ir.sizes import Size
from dovetail.ops.prims import REACHED

aten = torch.ops.aten
_NOTHING: Mapping[str, Value] = MappingProxyType({})


def whole_step(forward: Program, backward: Program, become: Mapping[str, Value] = _NOTHING) -> Program:
    """Forward and backward as one program, in which what is saved lives from its making to its last read.

    The halves number their storages each for itself; here they have numbers of their own. become: residuals, by name,
    that are another value of forward between the halves.
    """
    roles = list(zip(forward.signature.outputs, forward.outputs, strict=True))
    handed = {role.name: operand for role, operand in roles if isinstance(role, Residual)}
    handed.update(become)
    joiner = _Joiner(forward)
    inputs = list(forward.inputs)
    taken: list[InputRole] = list(forward.signature.inputs)
    for role, value in zip(backward.signature.inputs, backward.inputs, strict=True):
        source = handed.get(role.name) if isinstance(role, Residual) else None
        if isinstance(source, Value):
            joiner.stand_for(value, source)
        else:
            inputs.append(joiner.moved(value))
            taken.append(role)
    nodes = [joiner.node(node) for node in backward.nodes]
    kept = [(role, operand) for role, operand in roles if not isinstance(role, Residual)]
    outputs = [*(operand for _, operand in kept), *(joiner.operand(operand) for operand in backward.outputs)]
    given: list[OutputRole] = [*(role for role, _ in kept), *backward.signature.outputs]
    return Program(
        forward.name.removesuffix("_forward"),
        backward.stage,
        tuple(inputs),
        (*forward.nodes, *nodes),
        tuple(outputs),
        Signature(tuple(taken), tuple(given)),
    )


def as_one_run(
    forward: Program,
    backward: Program,
    stays: Collection[str] = (),
    leaves: Collection[int] = (),
    *,
    lets_go: bool = True,
) -> Program:
    """The same as autograd lets it run: what is held when, to the byte.

    A node between the halves reads all that forward gives, and makes the gradients that arrive. New contents of inputs
    die when they are copied; those that backward reads are in the input by then. At the end there is a node for each
    gradient that autograd copies.

    stays: names of residuals that are held until backward ends. leaves: numbers of the inputs that are leaves of
    autograd's graph. lets_go: whether autograd lets go of gradients that arrive; that of a single number is held by who
    calls backward in any case.
    """
    given = list(zip(forward.signature.outputs, forward.outputs, strict=True))
    handed = {role.name: operand for role, operand in given if isinstance(role, Residual)}
    written = {
        id(operand): forward.inputs[role.input]
        for role, operand in given
        if isinstance(role, InputMutation) and role.kind is not WriteKind.TRACKED and not role.constant
    }
    become = {name: written[id(operand)] for name, operand in handed.items() if id(operand) in written}
    both = whole_step(forward, backward, become)
    inputs = list(zip(both.signature.inputs, both.inputs, strict=True))
    arriving = [value for role, value in inputs if isinstance(role, Tangent) and value.is_tensor]
    held: list[Operand] = [operand for role, operand in given if isinstance(role, UserOutput)]
    held += [value for value in arriving if not lets_go or value.tensor.numel() == 1]
    held += [become.get(name, handed[name]) for name in stays if name in handed]
    read = tuple(dict.fromkeys(value for _, operand in given for value in values_in(operand) if value.is_tensor))
    border = Node(REACHED, (list(read), "border"), outputs=tuple(arriving), phase=Phase.BACKWARD)
    early, late = both.nodes[: len(forward.nodes)], both.nodes[len(forward.nodes) :]
    made = list(both.outputs[len(both.outputs) - len(backward.outputs) :])
    copies = _copies(both, made, copied_gradients(forward, backward, leaves))
    return replace(
        both,
        inputs=tuple(value for role, value in inputs if not isinstance(role, Tangent)),
        nodes=(*early, border, *late, *copies),
        outputs=(*held, *made),
        signature=Signature(),
    )


def _copies(program: Program, made: list[Operand], copied: Mapping[int, TensorMeta]) -> list[Node]:
    """The nodes that copy gradients, which take their places in `made`: those first that grow most by it."""
    draft, nodes = Draft(program), list[Node]()
    grown = sorted(copied, key=lambda place: 0 not in _stride(made[place]))
    for place in grown:
        meta, gradient = replace(copied[place], storage=draft.storage()), made[place]
        copy = Value(draft.name("kept"), meta)
        empty = (gradient, list(meta.shape), list(meta.stride))
        nodes.append(Node(aten.new_empty_strided.default, empty, outputs=(copy,), phase=Phase.BACKWARD))
        nodes.append(Node(aten.copy_.default, (copy, gradient), phase=Phase.BACKWARD))
        made[place] = copy
    return nodes


def _stride(operand: Operand) -> tuple[Size, ...]:
    return operand.tensor.stride if isinstance(operand, Value) else ()


class _Joiner:
    """Gives values of backward storages of the whole step."""

    def __init__(self, forward: Program) -> None:
        self._draft = Draft(forward)
        self._places: dict[int, int] = {}

    def stand_for(self, value: Value, source: Value) -> None:
        self._draft.substitute(value, source)
        if value.is_tensor and source.is_tensor:
            self._places.setdefault(value.tensor.storage, source.tensor.storage)

    def moved(self, value: Value) -> Value:
        if not value.is_tensor:
            return value
        if value.tensor.storage not in self._places:
            self._places[value.tensor.storage] = self._draft.storage()
        made = Value(value.name, replace(value.tensor, storage=self._places[value.tensor.storage]))
        self._draft.substitute(value, made)
        return made

    def node(self, node: Node) -> Node:
        moved = node.with_operands(self._draft.current).with_results(self.moved)
        return replace(moved, phase=Phase.BACKWARD)

    def operand(self, operand: Operand) -> Operand:
        return self._draft.operand(operand)
