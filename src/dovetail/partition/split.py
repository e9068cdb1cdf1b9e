"""Split a program of two phases into a forward and a backward program.

    forward(primals)            -> outputs, residuals
    backward(residuals, tangents) -> gradients

Nodes go where their phase says. A residual is a value that exists at the end of forward (an input or a result) and that
backward reads; by default every one of them is saved. Numbers that backward's sizes mention are residuals as well.
Constants that forward never reads are not residuals: backward takes them directly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dovetail.ir.made_symbols import made_symbols
from dovetail.ir.program import (
    Node,
    Operand,
    Phase,
    Program,
    ScalarMeta,
    Stage,
    Value,
    meta_symbols,
    symbols_in,
    values_in,
)
from dovetail.ir.signature import (
    Constant,
    InputMutation,
    InputRole,
    OutputRole,
    Residual,
    Signature,
    Tangent,
    UserOutput,
)
from dovetail.ir.sizes import symbol


@dataclass(frozen=True, slots=True)
class Split:
    """A program in two halves.

    residuals: names of the values handed over, tensors first, then numbers. sources: those that values are computed
    again from.
    """

    forward: Program
    backward: Program
    residuals: tuple[str, ...]
    sources: tuple[str, ...] = ()


def dying_inputs(split: Split, *, arriving: bool, is_last: bool = False) -> tuple[int, ...]:
    """Numbers of the inputs of backward that nobody else holds: what forward made, and the user does not get.

    arriving: whether autograd lets go of the gradients that arrive, too. is_last: no other backward can follow, so that
    what values are computed again from goes as well.
    """
    handed_out = zip(split.forward.signature.outputs, split.forward.outputs, strict=True)
    results = [value for role, output in handed_out if not isinstance(role, Residual) for value in values_in(output)]
    held = split.forward.input_storages() | {value.tensor.storage for value in results if value.is_tensor}
    inputs = zip(split.backward.signature.inputs, split.backward.inputs, strict=True)
    return tuple(
        number
        for number, (role, value) in enumerate(inputs)
        if (arriving and isinstance(role, Tangent))
        or (isinstance(role, Residual) and (is_last or role.name not in split.sources))
        if value.is_tensor and value.tensor.storage not in held
    )


def split_by_phase(program: Program) -> Split:
    """The default split: everything that backward needs is saved."""
    forward = tuple(node for node in program.nodes if node.phase is Phase.FORWARD)
    backward = tuple(node for node in program.nodes if node.phase is Phase.BACKWARD)
    return split_nodes(program, forward, backward)


def split_nodes(program: Program, forward_nodes: tuple[Node, ...], backward_nodes: tuple[Node, ...]) -> Split:
    """The split of a program in which these nodes run forward and those run backward.

    What backward reads and does not make is saved.
    """
    roles = list(zip(program.signature.outputs, program.outputs, strict=True))
    forward_outputs = [(role, operand) for role, operand in roles if is_forward(role)]
    backward_outputs = [(role, operand) for role, operand in roles if not is_forward(role)]
    saved, direct = residuals_of(program, backward_nodes)
    inputs = list(zip(program.signature.inputs, program.inputs, strict=True))
    primals = [(role, value) for role, value in inputs if not isinstance(role, Tangent) and value not in direct]
    tangents = [(role, value) for role, value in inputs if isinstance(role, Tangent)]
    made = made_symbols(program)
    made_late = {name for node in backward_nodes for name in made.get(node, ())}
    numbers = _residual_numbers(backward_nodes, made_late, [o for _, o in backward_outputs])
    handed = [*saved, *(Value(name, ScalarMeta(symbol(name))) for name in numbers)]
    forward = _program(
        f"{program.name}_forward",
        primals,
        forward_nodes,
        [*forward_outputs, *((Residual(v.name), v if v in saved else symbol(v.name)) for v in handed)],
    )
    residual_inputs: list[tuple[InputRole, Value]] = [(Residual(v.name), v) for v in handed]
    backward = _program(
        f"{program.name}_backward",
        [*residual_inputs, *((Constant(v.name), v) for v in direct), *tangents],
        backward_nodes,
        backward_outputs,
    )
    return Split(forward, backward, tuple(v.name for v in handed))


def is_forward(role: OutputRole) -> bool:
    """Whether an output is one of forward."""
    return isinstance(role, UserOutput) or (isinstance(role, InputMutation) and not role.during_backward)


def residuals_of(program: Program, backward: tuple[Node, ...]) -> tuple[list[Value], list[Value]]:
    """Tensors that exist before these nodes and that they or backward's outputs read.

    First those to save, then constants to take directly.
    """
    outputs = [o for r, o in zip(program.signature.outputs, program.outputs, strict=True) if not is_forward(r)]
    made_late: set[Value] = {value for node in backward for value in node.results()}
    tangents = {v for r, v in zip(program.signature.inputs, program.inputs, strict=True) if isinstance(r, Tangent)}
    constants = {v for r, v in zip(program.signature.inputs, program.inputs, strict=True) if isinstance(r, Constant)}
    used_early = {v for node in program.nodes if node.phase is Phase.FORWARD for v in node.operands()}
    saved: dict[Value, None] = {}
    direct: dict[Value, None] = {}
    for value in (*(v for node in backward for v in node.operands()), *values_in(outputs)):
        if value in made_late or value in tangents or not value.is_tensor:
            continue
        (direct if value in constants - used_early else saved)[value] = None
    return list(saved), list(direct)


def _residual_numbers(backward: tuple[Node, ...], made_late: set[str], outputs: list[Operand]) -> list[str]:
    """Size symbols that backward mentions, without those that its own nodes make."""
    names: dict[str, None] = {}
    for node in backward:
        names.update(dict.fromkeys(node.symbols()))
        for value in node.operands():
            if not value.is_tensor:
                names.update(dict.fromkeys(meta_symbols(value.meta)))
    names.update(dict.fromkeys(symbols_in(outputs)))
    return [name for name in names if name not in made_late]


def _program(
    name: str,
    inputs: Sequence[tuple[InputRole, Value]],
    nodes: tuple[Node, ...],
    outputs: Sequence[tuple[OutputRole, Operand]],
) -> Program:
    signature = Signature(tuple(role for role, _ in inputs), tuple(role for role, _ in outputs))
    return Program(
        name,
        Stage.SPLIT,
        tuple(value for _, value in inputs),
        nodes,
        tuple(operand for _, operand in outputs),
        signature,
    )
