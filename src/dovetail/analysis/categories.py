"""What each storage of a program is for: weights, optimizer state, what is saved for backward, and so on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from dovetail.ir.program import Phase, Program, Value, values_in
from dovetail.ir.signature import (
    Buffer,
    Constant,
    Gradient,
    GradientBase,
    GradientLeft,
    HeldGradient,
    InputMutation,
    InputRole,
    OutputRole,
    Parameter,
    Residual,
    ResultGradient,
    StateTensor,
    Tangent,
    UserOutput,
)
from dovetail.ops.facts import written_values

WEIGHTS = "weights"
BUFFERS = "buffers"
OPTIMIZER = "optimizer state"
STATE = "other state"
CONSTANTS = "constants"
INPUTS = "inputs"
GRADIENTS = "gradients"
SAVED = "saved for backward"
RECOMPUTED = "recomputed"
OUTPUTS = "outputs"
TEMPORARIES = "temporaries"

# In the order in which reports name them: what stays, then what a call makes.
CATEGORIES = (
    WEIGHTS,
    BUFFERS,
    OPTIMIZER,
    STATE,
    CONSTANTS,
    INPUTS,
    GRADIENTS,
    SAVED,
    RECOMPUTED,
    OUTPUTS,
    TEMPORARIES,
)

# `optimizer.state[model.head.weight]['exp_avg']`: the name that a step gives to what an optimizer keeps for a tensor.
_OPTIMIZER_STATE = re.compile(r".*\.state\[(?P<of>[^\]\[]+)\](\['[^']*'\])+")


def input_category(role: InputRole) -> str:
    """What an input is for."""
    if isinstance(role, Parameter):
        return WEIGHTS
    if isinstance(role, Buffer):
        return BUFFERS
    if isinstance(role, StateTensor):
        return OPTIMIZER if _OPTIMIZER_STATE.fullmatch(role.name) else STATE
    if isinstance(role, HeldGradient | Tangent):
        return GRADIENTS
    if isinstance(role, Residual):
        return SAVED
    return CONSTANTS if isinstance(role, Constant) else INPUTS


def module_of_input(role: InputRole) -> str:
    """The module that holds an input, or whose parameter the input belongs to; "" where none is known."""
    if isinstance(role, StateTensor):
        found = _OPTIMIZER_STATE.fullmatch(role.name)
        return found["of"].rpartition(".")[0] if found else ""
    if isinstance(role, Parameter | Buffer | HeldGradient):
        return role.name.removesuffix(".grad").rpartition(".")[0]
    return ""


def input_storages(program: Program) -> Iterator[tuple[InputRole, Value]]:
    """The tensors that a program is given, one for each storage, with their roles.

    A base of which inputs are views is left out: it is never read, and its bytes are those of the views.
    """
    seen: set[int] = set()
    for role, value in zip(program.signature.inputs, program.inputs, strict=True):
        if value.is_tensor and not isinstance(role, GradientBase) and value.tensor.storage not in seen:
            seen.add(value.tensor.storage)
            yield role, value


@dataclass(frozen=True, slots=True)
class Purpose:
    """What a storage that a program makes is for. later: from the node `later_from` on, where that is not -1."""

    category: str
    later: str = ""
    later_from: int = -1


def made_purposes(program: Program, saved: frozenset[int]) -> dict[int, Purpose]:
    """What each storage is for that a program makes. saved: those that forward keeps for backward alone.

    Memory that was saved is written over in backward, by a gradient for one: from then on it is for that.
    """
    found = dict.fromkeys(read_by_an_update(program), GRADIENTS)
    overwritten: dict[int, int] = {}
    for index, node in enumerate(program.nodes):
        for value in node.results():
            if value.is_tensor:
                found.setdefault(value.tensor.storage, RECOMPUTED if node.recomputed else TEMPORARIES)
        if node.phase is Phase.BACKWARD:
            for value in written_values(node):
                overwritten.setdefault(value.tensor.storage, index)
    for role, operand in zip(program.signature.outputs, program.outputs, strict=True):
        for value in values_in((operand,)):
            if value.is_tensor:
                found[value.tensor.storage] = _output_category(program, role)
    purposes = {storage: Purpose(category) for storage, category in found.items()}
    for storage in saved:
        purposes[storage] = Purpose(SAVED)
        if storage in overwritten:
            purposes[storage] = Purpose(SAVED, found[storage], overwritten[storage])
    return purposes


def _output_category(program: Program, role: OutputRole) -> str:
    if isinstance(role, UserOutput):
        return OUTPUTS
    if isinstance(role, Gradient | ResultGradient | GradientLeft):
        return GRADIENTS
    if isinstance(role, InputMutation) and 0 <= role.input < len(program.signature.inputs):
        return input_category(program.signature.inputs[role.input])
    return SAVED if isinstance(role, Residual) else OUTPUTS


def handed_to_backward(program: Program) -> frozenset[int]:
    """Storages that forward makes and backward reads, in a program that has both."""
    return _handed(program, Phase.FORWARD)


def read_by_an_update(program: Program) -> frozenset[int]:
    """Storages that backward makes and the code after it reads: the gradients that an optimizer takes."""
    return _handed(program, Phase.BACKWARD)


def _handed(program: Program, phase: Phase) -> frozenset[int]:
    """Storages of values that nodes of a phase make and nodes of the other phase read."""
    made: set[Value] = set()
    handed: set[int] = set()
    for node in program.nodes:
        if node.phase is phase:
            made.update(node.results())
        else:
            handed.update(value.tensor.storage for value in node.operands() if value in made and value.is_tensor)
    return frozenset(handed) - program.input_storages()
