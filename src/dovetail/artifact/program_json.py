"""A program as plain data for JSON, and back; nothing is pickled, and reading executes nothing.

    {"format": "dovetail program", "version": 1, "name", "stage",
     "values": [{"name", "shape", "stride", "offset", "dtype", "device", "storage"} | {"name", "scalar"}],
     "inputs": [name], "nodes": [{"target", "args", "kwargs", "outputs", ...}], "outputs": [operand],
     "signature": {"inputs": [role], "outputs": [role]}, "origins": [[file, line, function, module]]}

Operands that JSON has no word for are objects of one entry: `{"value": name}`, `{"size": ...}`, `{"tuple": [...]}`,
`{"float": "nan"}`, `{"complex": [re, im]}`, `{"dtype": ...}`, `{"device": ...}`, `{"layout": ...}`,
`{"memory_format": ...}`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import torch

from dovetail.artifact.target_text import read_target, target_text
from dovetail.errors import NotSerializable
from dovetail.ir import signature as roles
from dovetail.ir.program import Meta, Node, Operand, Origin, Phase, Program, ScalarMeta, Stage, TensorMeta, Value
from dovetail.ir.signature import Signature, WriteKind
from dovetail.ir.sizes import Scalar, SizeExpr
from dovetail.ir.sizes import from_json as read_size
from dovetail.ir.sizes import to_json as size_to_json

FORMAT = "dovetail program"
VERSION = 1

_NAMED = {"dtype": torch.dtype, "layout": torch.layout, "memory_format": torch.memory_format}
_INPUT_ROLES = (
    *(roles.Parameter, roles.Buffer, roles.UserInput, roles.Constant, roles.SizeInput),
    *(roles.Tangent, roles.Residual, roles.SharedBytes, roles.GradientBase),
)
_OUTPUT_ROLES = (roles.UserOutput, roles.InputMutation, roles.Gradient)
_ROLES: dict[str, Any] = {kind.__name__: kind for kind in (*_INPUT_ROLES, *_OUTPUT_ROLES)}


def program_to_json(program: Program) -> dict[str, Any]:
    """The program as data for `json.dumps(..., allow_nan=False)`.

    Raises: NotSerializable for sub-programs of control flow, generators and other objects among the operands.
    """
    try:
        return _Writer(program).written()
    except ValueError as error:
        raise NotSerializable(
            what=f"program {program.name}", reason=str(error), hint="look at its text instead: DOVETAIL_DUMP"
        ) from error


def program_from_json(data: object) -> Program:
    """The program that `program_to_json` wrote, equal in everything but the identity of its values.

    Raises: ValueError that says what is wrong with the data.
    """
    if not isinstance(data, Mapping) or data.get("format") != FORMAT:
        raise ValueError(f'it does not say "format": "{FORMAT}"')
    if data.get("version") != VERSION:
        raise ValueError(f"it is of version {data.get('version')}; this dovetail reads version {VERSION}")
    try:
        return _Reader(data).program()
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(f"it is damaged: {type(error).__name__}: {error}") from error


class _Writer:
    def __init__(self, program: Program) -> None:
        self._program = program
        self._origins: dict[Origin, int] = {}

    def written(self) -> dict[str, Any]:
        program = self._program
        values = [*program.inputs, *(value for node in program.nodes for value in node.results())]
        names = {value.name for value in values}
        if len(names) < len(values):
            raise ValueError("two of its values have one name")
        nodes = [self._node(node) for node in program.nodes]
        return {
            "format": FORMAT,
            "version": VERSION,
            "name": program.name,
            "stage": program.stage.value,
            "values": [{"name": value.name, **_meta(value.meta)} for value in values],
            "inputs": [value.name for value in program.inputs],
            "nodes": nodes,
            "outputs": [_operand(operand) for operand in program.outputs],
            "signature": {
                "inputs": [_role(role) for role in program.signature.inputs],
                "outputs": [_role(role) for role in program.signature.outputs],
            },
            "origins": [list(dataclasses.astuple(origin)) for origin in self._origins],
        }

    def _node(self, node: Node) -> dict[str, Any]:
        return {
            "target": target_text(node.target),
            "args": [_operand(operand) for operand in node.args],
            "kwargs": {name: _operand(operand) for name, operand in node.kwargs},
            "outputs": [None if value is None else value.name for value in node.outputs],
            "unpack": node.unpack,
            "phase": node.phase.value,
            "recomputed": node.recomputed,
            "origin": self._origins.setdefault(node.origin, len(self._origins)),
        }


def _meta(meta: Meta) -> dict[str, Any]:
    if isinstance(meta, ScalarMeta):
        return {"scalar": size_to_json(meta.expr)}
    return {
        "shape": [size_to_json(size) for size in meta.shape],
        "stride": [size_to_json(step) for step in meta.stride],
        "offset": size_to_json(meta.offset),
        "dtype": str(meta.dtype).removeprefix("torch."),
        "device": str(meta.device),
        "storage": meta.storage,
    }


def _operand(operand: Operand) -> Any:
    if isinstance(operand, Value):
        return {"value": operand.name}
    if operand is None or isinstance(operand, bool | int | str):
        return operand
    if isinstance(operand, float):
        return operand if math.isfinite(operand) else {"float": str(operand)}
    if isinstance(operand, complex):
        return {"complex": [_operand(operand.real), _operand(operand.imag)]}
    if isinstance(operand, SizeExpr):
        return {"size": size_to_json(operand)}
    if isinstance(operand, tuple):
        return {"tuple": [_operand(item) for item in operand]}
    if isinstance(operand, list):
        return [_operand(item) for item in operand]
    if isinstance(operand, torch.device):
        return {"device": str(operand)}
    for kind, type_ in _NAMED.items():
        if isinstance(operand, type_):
            return {kind: str(operand).removeprefix("torch.")}
    raise ValueError(f"an operand is a {type(operand).__name__}")


def _role(role: object) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(role):  # type: ignore[arg-type]
        value = getattr(role, field.name)
        if value is not None and not isinstance(value, bool | int | str | tuple | WriteKind):
            raise ValueError(f"the {field.name} of {role} is a {type(value).__name__}")
        fields[field.name] = value.value if isinstance(value, WriteKind) else value
    return {"role": type(role).__name__, **fields}


class _Reader:
    def __init__(self, data: Mapping[str, Any]) -> None:
        self._data = data
        self._values = {entry["name"]: Value(entry["name"], _read_meta(entry)) for entry in data["values"]}
        self._origins = [Origin(*entry) for entry in data["origins"]]
        self._targets: dict[str, Any] = {}

    def program(self) -> Program:
        data = self._data
        signature = data["signature"]
        return Program(
            name=data["name"],
            stage=Stage(data["stage"]),
            inputs=tuple(self._values[name] for name in data["inputs"]),
            nodes=tuple(map(self._node, data["nodes"])),
            outputs=tuple(map(self._operand, data["outputs"])),
            signature=Signature(
                tuple(map(_read_role, signature["inputs"])), tuple(map(_read_role, signature["outputs"]))
            ),
        )

    def _node(self, entry: Mapping[str, Any]) -> Node:
        text = entry["target"]
        if text not in self._targets:
            self._targets[text] = read_target(text)
        return Node(
            target=self._targets[text],
            args=tuple(map(self._operand, entry["args"])),
            kwargs=tuple((name, self._operand(operand)) for name, operand in entry["kwargs"].items()),
            outputs=tuple(None if name is None else self._values[name] for name in entry["outputs"]),
            unpack=entry["unpack"],
            phase=Phase(entry["phase"]),
            origin=self._origins[entry["origin"]],
            recomputed=entry["recomputed"],
        )

    def _operand(self, data: Any) -> Operand:
        if isinstance(data, list):
            return list(map(self._operand, data))
        if not isinstance(data, dict):
            return data
        ((kind, content),) = data.items()
        if kind == "value":
            return self._values[content]
        if kind == "tuple":
            return tuple(map(self._operand, content))
        if kind == "size":
            return read_size(content)
        if kind == "float":
            return float(content)
        if kind == "complex":
            real, imaginary = (float(part["float"] if isinstance(part, dict) else part) for part in content)
            return complex(real, imaginary)
        if kind == "device":
            return torch.device(content)
        return _named(kind, content)


def _named(kind: str, name: str) -> object:
    found = getattr(torch, name, None)
    if kind not in _NAMED or not isinstance(found, _NAMED[kind]):
        raise ValueError(f"{name!r} is no {kind} of this torch")
    return found


def _read_meta(entry: Mapping[str, Any]) -> Meta:
    if "scalar" in entry:
        return ScalarMeta(read_size(entry["scalar"]))
    dtype = _named("dtype", entry["dtype"])
    assert isinstance(dtype, torch.dtype), "checked by _named"
    shape, stride = (tuple(map(_integer, entry[name])) for name in ("shape", "stride"))
    return TensorMeta(shape, stride, _integer(entry["offset"]), dtype, torch.device(entry["device"]), entry["storage"])


def _integer(data: object) -> int | SizeExpr:
    size: Scalar = read_size(data)
    if isinstance(size, bool | float):
        raise ValueError(f"{size!r} is no size")
    return size


def _read_role(entry: Mapping[str, Any]) -> Any:
    fields = {name: value for name, value in entry.items() if name != "role"}
    if "kind" in fields:
        fields["kind"] = WriteKind(fields["kind"])
    fields = {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
    return _ROLES[entry["role"]](**fields)
