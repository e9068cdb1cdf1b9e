"""Graph signatures to and from `torch.export.graph_signature.ExportGraphSignature`.

What torch.export has words for is the same on both sides: parameters, buffers, closed-over tensors, user inputs, sizes,
tokens; user outputs, the loss, new contents of parameters, buffers and user inputs, gradients of parameters and user
inputs. It has none for tensors that forward saves for backward, for memory shared by inputs and the tensors that inputs
view, for gradients that arrive (its joint graphs begin at the loss), for gradients of buffers and of closed-over
tensors, and for gradients that do not exist: an UnsupportedSignature names them. dovetail in turn has no word for
custom objects. Lost on the way out are places of user inputs among the arguments, size symbols, and how and when
mutations are carried out; the way back numbers user inputs and outputs in order.
"""

from __future__ import annotations

from torch.export import graph_signature as export

from dovetail.errors import UnsupportedSignature
from dovetail.ir.graph_signature import GraphSignature
from dovetail.ir.signature_entries import Argument, ArgumentKind, InputEntry, InputPurpose, OutputEntry, OutputPurpose

_INPUT_KINDS = {
    InputPurpose.PARAMETER: export.InputKind.PARAMETER,
    InputPurpose.BUFFER: export.InputKind.BUFFER,
    InputPurpose.CONSTANT: export.InputKind.CONSTANT_TENSOR,
    InputPurpose.USER_INPUT: export.InputKind.USER_INPUT,
    InputPurpose.SIZE: export.InputKind.USER_INPUT,
    InputPurpose.TOKEN: export.InputKind.TOKEN,
}
_NAMED = frozenset({InputPurpose.PARAMETER, InputPurpose.BUFFER, InputPurpose.CONSTANT})
_OUTPUT_KINDS: dict[tuple[OutputPurpose, InputPurpose | None], export.OutputKind] = {
    (OutputPurpose.USER_OUTPUT, None): export.OutputKind.USER_OUTPUT,
    (OutputPurpose.LOSS, None): export.OutputKind.LOSS_OUTPUT,
    (OutputPurpose.TOKEN, None): export.OutputKind.TOKEN,
    (OutputPurpose.MUTATION, InputPurpose.PARAMETER): export.OutputKind.PARAMETER_MUTATION,
    (OutputPurpose.MUTATION, InputPurpose.BUFFER): export.OutputKind.BUFFER_MUTATION,
    (OutputPurpose.MUTATION, InputPurpose.USER_INPUT): export.OutputKind.USER_INPUT_MUTATION,
    (OutputPurpose.GRADIENT, InputPurpose.PARAMETER): export.OutputKind.GRADIENT_TO_PARAMETER,
    (OutputPurpose.GRADIENT, InputPurpose.USER_INPUT): export.OutputKind.GRADIENT_TO_USER_INPUT,
}
_PURPOSES = {kind: purpose for purpose, kind in _INPUT_KINDS.items() if purpose is not InputPurpose.SIZE}
_OUTPUT_PURPOSES = {kind: key for key, kind in _OUTPUT_KINDS.items()}
_ARGUMENTS: dict[ArgumentKind, type[export.ArgumentSpec]] = {
    ArgumentKind.TENSOR: export.TensorArgument,
    ArgumentKind.INT: export.SymIntArgument,
    ArgumentKind.FLOAT: export.SymFloatArgument,
    ArgumentKind.BOOL: export.SymBoolArgument,
    ArgumentKind.TOKEN: export.TokenArgument,
}
_KINDS = {cls: kind for kind, cls in _ARGUMENTS.items()}
_EXPORT = "a signature of torch.export"


def to_export_signature(
    signature: GraphSignature, *, tangents_as_user_inputs: bool = False
) -> export.ExportGraphSignature:
    """The signature in torch.export's words.

    tangents_as_user_inputs: gradients that arrive become user inputs, instead of being refused.
    Raises: UnsupportedSignature, naming the first input or output that torch.export has no word for.
    """
    return export.ExportGraphSignature(
        [_input_spec(entry, tangents_as_user_inputs) for entry in signature.inputs],
        [_output_spec(entry) for entry in signature.outputs],
    )


def from_export_signature(signature: export.ExportGraphSignature) -> GraphSignature:
    """The signature that torch.export's says. Raises: UnsupportedSignature for custom objects."""
    inputs: list[InputEntry] = []
    outputs: list[OutputEntry] = []
    for spec in signature.input_specs:
        inputs.append(_input_entry(spec, sum(entry.purpose is InputPurpose.USER_INPUT for entry in inputs)))
    for out in signature.output_specs:
        purpose, of = _OUTPUT_PURPOSES[out.kind]
        is_user_output = purpose in (OutputPurpose.USER_OUTPUT, OutputPurpose.LOSS)
        index = sum(entry.index >= 0 for entry in outputs) if is_user_output else -1
        outputs.append(OutputEntry(_argument(out.arg), purpose, of, out.target or "", index))
    return GraphSignature(tuple(inputs), tuple(outputs))


def _input_spec(entry: InputEntry, tangents_as_user_inputs: bool) -> export.InputSpec:
    if entry.purpose is InputPurpose.TANGENT and tangents_as_user_inputs:
        return export.InputSpec(export.InputKind.USER_INPUT, _argument_spec(entry.argument), None)
    kind = _INPUT_KINDS.get(entry.purpose)
    if kind is None:
        hint = "take the signature of the whole program, or of its forward half without gradients"
        if entry.purpose is InputPurpose.TANGENT:
            hint = "give tangents_as_user_inputs=True"
        raise UnsupportedSignature(
            what=f"input {entry.argument} ({entry.what()})",
            where=_EXPORT,
            reason="torch.export has no such inputs",
            hint=hint,
        )
    target = entry.target if entry.purpose in _NAMED else None
    persistent = entry.persistent if entry.purpose is InputPurpose.BUFFER else None
    return export.InputSpec(kind, _argument_spec(entry.argument), target, persistent)


def _output_spec(entry: OutputEntry) -> export.OutputSpec:
    kind = _OUTPUT_KINDS.get((entry.purpose, entry.of))
    is_absent = entry.purpose is OutputPurpose.GRADIENT and entry.argument.kind is ArgumentKind.CONSTANT
    if kind is None or is_absent:
        raise UnsupportedSignature(
            what=f"output {entry.argument} ({entry.what()})",
            where=_EXPORT,
            reason="there every gradient is a tensor" if is_absent else "torch.export has no such outputs",
            hint="take the signature of a program without this output",
        )
    return export.OutputSpec(kind, _argument_spec(entry.argument), entry.target or None)


def _argument_spec(argument: Argument) -> export.ArgumentSpec:
    if argument.kind is ArgumentKind.CONSTANT:
        return export.ConstantArgument(name=argument.name, value=argument.value)
    return _ARGUMENTS[argument.kind](name=argument.name)  # type: ignore[call-arg]


def _input_entry(spec: export.InputSpec, user_inputs: int) -> InputEntry:
    argument = _argument(spec.arg)
    purpose = _PURPOSES[spec.kind]
    is_size = purpose is InputPurpose.USER_INPUT and argument.kind in (
        ArgumentKind.INT,
        ArgumentKind.FLOAT,
        ArgumentKind.BOOL,
    )
    if is_size:
        return InputEntry(argument, InputPurpose.SIZE, argument.name)
    index = user_inputs if purpose is InputPurpose.USER_INPUT else -1
    return InputEntry(argument, purpose, spec.target or "", index, spec.persistent is not False)


def _argument(spec: export.ArgumentSpec) -> Argument:
    if isinstance(spec, export.ConstantArgument):
        return Argument(spec.name, ArgumentKind.CONSTANT, spec.value)
    if isinstance(spec, export.CustomObjArgument):
        raise UnsupportedSignature(
            what=f"the custom object {spec.name} ({spec.class_fqn})",
            where="a signature of dovetail",
            reason="programs hold tensors and numbers",
            hint="export the module without custom objects",
        )
    return Argument(spec.name, _KINDS[type(spec)])
