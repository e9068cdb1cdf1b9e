"""What each input and output of a program stands for, in names: a signature that can be printed, kept and compared.

`ir.signature` gives roles by position; a `GraphSignature` names them: which input is which parameter, which output is
the new contents of which buffer, which is the gradient of what. It is plain data, with a text, a form for JSON, and a
form for `torch.export` (in `ir.export_signature`).

    inputs
      weight_0: parameter 'weight'
      arg_1: user input 0
      tangent_0: gradient that arrives for user output 0
    outputs
      sum_1: loss, user output 0
      mm_1: gradient of parameter 'weight'
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from dovetail.errors import UnsupportedSignature
from dovetail.ir.program import Operand, Program, ScalarMeta, Value
from dovetail.ir.signature import (
    Buffer,
    Constant,
    Gradient,
    GradientBase,
    GradientLeft,
    InputMutation,
    InputRole,
    NumberLeft,
    OutputRole,
    Parameter,
    Residual,
    ResultGradient,
    SharedBytes,
    SizeInput,
    Tangent,
    UserInput,
    UserOutput,
    WriteKind,
)
from dovetail.ir.signature_entries import (
    Argument,
    ArgumentKind,
    InputEntry,
    InputPurpose,
    OutputEntry,
    OutputPurpose,
    Plain,
)
from dovetail.ir.sizes import OPAQUE, Scalar, SizeExpr


@dataclass(frozen=True, slots=True)
class GraphSignature:
    """Inputs and outputs of a program, in its order. Make one with `GraphSignature.of`."""

    inputs: tuple[InputEntry, ...]
    outputs: tuple[OutputEntry, ...]

    @staticmethod
    def of(
        program: Program,
        *,
        forward: Program | None = None,
        loss: int | None = None,
        non_persistent: Collection[str] = (),
        donated: Collection[int] = (),
    ) -> GraphSignature:
        """The signature of a program.

        forward: for the backward half of a split, its forward half, whose inputs the gradients belong to.
        loss: number of the user output that is the loss; without it, the loss is known of a program that takes exactly
        one tangent, for a single number. non_persistent: names of buffers that are not part of their module's state.
        donated: numbers of inputs whose contents the caller gives up.
        Raises: UnsupportedSignature for a backward half without its forward.
        """
        signature = _Reader(program, forward, loss, frozenset(non_persistent)).read()
        if not donated:
            return signature
        entries = enumerate(signature.inputs)
        inputs = tuple(dataclasses.replace(entry, donated=index in donated) for index, entry in entries)
        return dataclasses.replace(signature, inputs=inputs)

    # --- inputs, by purpose ---------------------------------------------------------------------------------------

    @property
    def inputs_to_parameters(self) -> dict[str, str]:
        """Name of the input -> name of the parameter."""
        return self._targets(InputPurpose.PARAMETER)

    @property
    def inputs_to_buffers(self) -> dict[str, str]:
        """Name of the input -> name of the buffer."""
        return self._targets(InputPurpose.BUFFER)

    @property
    def inputs_to_constants(self) -> dict[str, str]:
        """Name of the input -> name of the tensor that the function closed over."""
        return self._targets(InputPurpose.CONSTANT)

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the parameters, in order of the inputs."""
        return tuple(self.inputs_to_parameters.values())

    @property
    def buffers(self) -> tuple[str, ...]:
        """Names of the buffers, in order of the inputs."""
        return tuple(self.inputs_to_buffers.values())

    @property
    def non_persistent_buffers(self) -> tuple[str, ...]:
        """Names of the buffers that are not part of their module's state."""
        return tuple(e.target for e in self.inputs if e.purpose is InputPurpose.BUFFER and not e.persistent)

    @property
    def user_inputs(self) -> tuple[Plain, ...]:
        """Names of the user inputs and of sizes; constants by their value."""
        return tuple(
            _shown(e.argument) for e in self.inputs if e.purpose in (InputPurpose.USER_INPUT, InputPurpose.SIZE)
        )

    @property
    def input_tokens(self) -> tuple[str, ...]:
        """Names of the inputs that order effects; programs of dovetail have none, their order is that of the nodes."""
        return tuple(e.argument.name for e in self.inputs if e.purpose is InputPurpose.TOKEN)

    @property
    def donated(self) -> tuple[str, ...]:
        """Names of the inputs that may be written over: nobody reads them after the program."""
        return tuple(e.argument.name for e in self.inputs if e.donated)

    @property
    def tangents(self) -> dict[str, int]:
        """Name of the input -> number of the output whose gradient it is."""
        return {e.argument.name: e.index for e in self.inputs if e.purpose is InputPurpose.TANGENT}

    # --- outputs, by purpose --------------------------------------------------------------------------------------

    @property
    def user_outputs(self) -> tuple[Plain, ...]:
        """Names of the user outputs, the loss included; constants by their value."""
        chosen = (OutputPurpose.USER_OUTPUT, OutputPurpose.LOSS)
        return tuple(_shown(e.argument) for e in self.outputs if e.purpose in chosen)

    @property
    def loss_output(self) -> str | None:
        """Name of the loss, if it is known."""
        return next((e.argument.name for e in self.outputs if e.purpose is OutputPurpose.LOSS), None)

    @property
    def parameters_to_mutate(self) -> dict[str, str]:
        """Name of the output -> name of the parameter whose contents it becomes."""
        return self._by_input(OutputPurpose.MUTATION, InputPurpose.PARAMETER)

    @property
    def buffers_to_mutate(self) -> dict[str, str]:
        """Name of the output -> name of the buffer whose contents it becomes."""
        return self._by_input(OutputPurpose.MUTATION, InputPurpose.BUFFER)

    @property
    def user_inputs_to_mutate(self) -> dict[str, str]:
        """Name of the output -> name of the user input whose contents it becomes."""
        return self._by_input(OutputPurpose.MUTATION, InputPurpose.USER_INPUT)

    @property
    def gradients_to_parameters(self) -> dict[str, str]:
        """Name of the output -> name of the parameter whose gradient it is."""
        return self._by_input(OutputPurpose.GRADIENT, InputPurpose.PARAMETER)

    @property
    def gradients_to_user_inputs(self) -> dict[str, str]:
        """Name of the output -> name of the user input whose gradient it is."""
        return self._by_input(OutputPurpose.GRADIENT, InputPurpose.USER_INPUT)

    @property
    def output_tokens(self) -> tuple[str, ...]:
        """Names of the outputs that order effects."""
        return tuple(e.argument.name for e in self.outputs if e.purpose is OutputPurpose.TOKEN)

    # --- text and JSON --------------------------------------------------------------------------------------------

    def __str__(self) -> str:
        lines = ["inputs", *(f"  {entry.argument}: {entry.what()}" for entry in self.inputs)]
        lines += ["outputs", *(f"  {entry.argument}: {entry.what()}" for entry in self.outputs)]
        return "\n".join(lines)

    def to_json(self) -> dict[str, object]:
        """Plain dictionaries and lists, for `json.dump` and `from_json`; fields with their usual value are left out."""
        return {
            "inputs": [_without_defaults(entry) for entry in self.inputs],
            "outputs": [_without_defaults(entry) for entry in self.outputs],
        }

    @staticmethod
    def from_json(data: object) -> GraphSignature:
        """The signature that `to_json` wrote. Raises: ValueError when `data` is not such a structure."""
        try:
            read: Any = data
            inputs = tuple(map(_input_from, read["inputs"]))
            outputs = tuple(map(_output_from, read["outputs"]))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"not a serialised signature: {error!r}") from error
        return GraphSignature(inputs, outputs)

    # --- lookup ---------------------------------------------------------------------------------------------------

    def _targets(self, purpose: InputPurpose) -> dict[str, str]:
        return {e.argument.name: e.target for e in self.inputs if e.purpose is purpose}

    def _by_input(self, purpose: OutputPurpose, of: InputPurpose) -> dict[str, str]:
        found = [e for e in self.outputs if e.purpose is purpose and e.of is of]
        return {e.argument.name: e.target for e in found if e.argument.kind is not ArgumentKind.CONSTANT}


def _shown(argument: Argument) -> Plain:
    return argument.value if argument.kind is ArgumentKind.CONSTANT else argument.name


# --- from a program ---------------------------------------------------------------------------------------------------


class _Reader:
    def __init__(
        self, program: Program, forward: Program | None, loss: int | None, non_persistent: frozenset[str]
    ) -> None:
        self.program = program
        self.primals = program if forward is None else forward
        self.non_persistent = non_persistent
        roles = program.signature.inputs
        if forward is None and any(isinstance(role, Residual) for role in roles):
            raise UnsupportedSignature(
                what=f"the backward half {program.name}",
                where="a graph signature by itself",
                reason="its gradients belong to inputs of the forward half",
                hint="give that one too: GraphSignature.of(backward, forward=...)",
            )
        self.loss = self._known_loss() if loss is None else loss

    def read(self) -> GraphSignature:
        roles = self.program.signature
        inputs = zip(roles.inputs, self.program.inputs, strict=True)
        outputs = zip(roles.outputs, self.program.outputs, strict=True)
        return GraphSignature(
            tuple(self._input(role, value) for role, value in inputs),
            tuple(self._output(role, operand) for role, operand in outputs),
        )

    def _known_loss(self) -> int | None:
        """The user output that is a single number and the only one whose gradient arrives."""
        tangents = [
            (role.output, value)
            for role, value in zip(self.program.signature.inputs, self.program.inputs, strict=True)
            if isinstance(role, Tangent)
        ]
        if len(tangents) == 1 and tangents[0][1].tensor.shape == ():
            return tangents[0][0]
        return None

    def _input(self, role: InputRole, value: Value) -> InputEntry:
        argument = _argument(value)
        purpose, target = _PURPOSES[type(role)], ""
        if isinstance(role, Parameter | Buffer | Constant | Residual):
            target = role.name
        elif isinstance(role, SizeInput):
            target = role.symbol
        if isinstance(role, UserInput | Tangent):
            index = role.index if isinstance(role, UserInput) else role.output
            return InputEntry(argument, purpose, index=index)
        if isinstance(role, SharedBytes | GradientBase):
            return InputEntry(argument, purpose, members=tuple(self.primals.inputs[i].name for i in role.inputs))
        persistent = not (isinstance(role, Buffer) and role.name in self.non_persistent)
        return InputEntry(argument, purpose, target, persistent=persistent)

    def _output(self, role: OutputRole, operand: Operand) -> OutputEntry:
        argument = _argument(operand)
        if isinstance(role, UserOutput):
            purpose = OutputPurpose.LOSS if role.slot == self.loss else OutputPurpose.USER_OUTPUT
            return OutputEntry(argument, purpose, index=role.slot)
        if isinstance(role, Residual):
            return OutputEntry(argument, OutputPurpose.RESIDUAL, target=role.name)
        if isinstance(role, InputMutation) and role.constant:
            purpose, of = OutputPurpose.MUTATION, InputPurpose.CONSTANT
            return OutputEntry(argument, purpose, of, role.constant, write=role.kind, during_backward=True)
        assert not isinstance(role, ResultGradient | GradientLeft | NumberLeft), "no signature has these"
        primal = self._input(self.primals.signature.inputs[role.input], self.primals.inputs[role.input])
        target = primal.target or primal.argument.name
        if isinstance(role, Gradient):
            return OutputEntry(argument, OutputPurpose.GRADIENT, primal.purpose, target)
        late = role.during_backward
        return OutputEntry(
            argument, OutputPurpose.MUTATION, primal.purpose, target, write=role.kind, during_backward=late
        )


_PURPOSES: dict[type, InputPurpose] = {
    Parameter: InputPurpose.PARAMETER,
    Buffer: InputPurpose.BUFFER,
    UserInput: InputPurpose.USER_INPUT,
    Constant: InputPurpose.CONSTANT,
    SizeInput: InputPurpose.SIZE,
    Tangent: InputPurpose.TANGENT,
    Residual: InputPurpose.RESIDUAL,
    SharedBytes: InputPurpose.SHARED_BYTES,
    GradientBase: InputPurpose.GRADIENT_BASE,
}


def _argument(operand: Operand) -> Argument:
    if isinstance(operand, Value):
        kind = _kind_of(operand.meta.expr) if isinstance(operand.meta, ScalarMeta) else ArgumentKind.TENSOR
        return Argument(operand.name, kind)
    if isinstance(operand, SizeExpr):
        return Argument(str(operand), _kind_of(operand))
    is_plain = operand is None or isinstance(operand, bool | int | float | str)
    return Argument("", ArgumentKind.CONSTANT, operand if is_plain else str(operand))  # type: ignore[arg-type]


def _kind_of(expr: Scalar) -> ArgumentKind:
    if isinstance(expr, SizeExpr):
        is_fraction = expr.op in _FRACTIONS or (expr.op == "round" and len(expr.args) == 2)
        return ArgumentKind.BOOL if expr.op in _TRUTHS else ArgumentKind.FLOAT if is_fraction else ArgumentKind.INT
    return (
        ArgumentKind.BOOL
        if isinstance(expr, bool)
        else ArgumentKind.FLOAT
        if isinstance(expr, float)
        else ArgumentKind.INT
    )


_TRUTHS = frozenset({"eq", "ne", "lt", "le", "gt", "ge", "and", "or", "not"})
_FRACTIONS = frozenset({"truediv", "float", *OPAQUE})


# --- JSON -------------------------------------------------------------------------------------------------------------


def _without_defaults(entry: InputEntry | OutputEntry) -> dict[str, object]:
    argument = entry.argument
    data: dict[str, object] = {"name": argument.name}
    if argument.kind is not ArgumentKind.TENSOR:
        data |= {"kind": argument.kind.value, "value": argument.value}
    for field in dataclasses.fields(entry):
        value = getattr(entry, field.name)
        if field.name != "argument" and value != field.default:
            data[field.name] = value.value if isinstance(value, enum.Enum) else value
    return {key: list(value) if isinstance(value, tuple) else value for key, value in data.items()}


def _input_from(data: dict[str, Any]) -> InputEntry:
    fields = _common(data, InputPurpose)
    fields["members"] = tuple(fields.get("members", ()))
    return InputEntry(**fields)


def _output_from(data: dict[str, Any]) -> OutputEntry:
    fields = _common(data, OutputPurpose)
    fields["of"] = InputPurpose(fields["of"]) if "of" in fields else None
    fields["write"] = WriteKind(fields["write"]) if "write" in fields else None
    return OutputEntry(**fields)


def _common(data: dict[str, Any], purposes: type[enum.Enum]) -> dict[str, Any]:
    rest = dict(data)
    argument = Argument(
        str(rest.pop("name")), ArgumentKind(rest.pop("kind", ArgumentKind.TENSOR)), rest.pop("value", None)
    )
    return {**rest, "argument": argument, "purpose": purposes(rest["purpose"])}
