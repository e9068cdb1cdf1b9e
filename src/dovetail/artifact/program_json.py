"""A program as plain data for JSON, and back; nothing is pickled, and reading executes nothing.

    {"format": "dovetail program", "version": 1, "name", "stage",
     "values": [{"name", "shape", "stride", "offset", "dtype", "device", "storage"} | {"name", "scalar"}],
     "inputs": [name], "nodes": [{"target", "args", "kwargs", "outputs", ...}], "outputs": [operand],
     "signature": {"inputs": [role], "outputs": [role]}, "origins": [[file, line, function, module]]}

Operands are coded by `operand_json`, targets by `target_text`. The data is checked before it is run: names
(`source_names`), targets (`target_text`), each call (`call_rules`), the rules of the program's stage, the
limits on sizes (`limits`), the descriptions of values (`descriptions`), and that the data is exactly what would be
written for the program it describes. Subgraphs of an operator are programs in its node, and pass the same checks
(`subgraph_rules`); only dumps hold them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from dovetail.artifact.call_rules import Calls
from dovetail.artifact.descriptions import check_descriptions
from dovetail.artifact.known_results import KnownResults
from dovetail.artifact.limits import MAX_NODES, MAX_RANK, MAX_SUBGRAPH_DEPTH, MAX_VALUES, check_count
from dovetail.artifact.operand_json import operand_from_json, operand_to_json, read_device, read_named
from dovetail.artifact.record_json import PLAIN, Coding, Records, optional, refused
from dovetail.artifact.source_names import checked_keyword, checked_line, checked_name, checked_size
from dovetail.artifact.subgraph_rules import (
    FORMS,
    check_results,
    checked_call,
    is_subgraph_target,
    read_operator,
    run_of,
    subgraph_call,
)
from dovetail.artifact.target_text import Allowed, read_target, target_text
from dovetail.deferred import deferred
from dovetail.errors import InvalidProgram, NotSerializable
from dovetail.ir import signature as roles
from dovetail.ir.program import (
    Meta,
    Node,
    Operand,
    Origin,
    Phase,
    Program,
    ScalarMeta,
    Stage,
    Target,
    TensorMeta,
    Value,
    meta_symbols,
    symbols_in,
)
from dovetail.ir.signature import Signature
from dovetail.ir.sizes import Number, SizeExpr, is_whole, symbol
from dovetail.ir.sizes import to_json as size_to_json
from dovetail.ir.stages import verify_program
from dovetail.ir.sub_programs import sub_programs_of, with_inner_programs
from dovetail.ops.facts import writes_of

_sub_programs = deferred("dovetail.ops.sub_programs")

FORMAT = "dovetail program"
VERSION = 1

_MAX_SIZE = 1 << 63
_MAX_LABEL = 1000
_PROGRAM_NAME = re.compile(r"[\w .<>-]{0,300}")
_FIELDS: Mapping[str, Coding] = {**PLAIN, "AnyLayout | None": optional(refused("wrappers of tensors"))}
_INPUT_ROLES = Records(
    "role",
    (
        *(roles.Parameter, roles.Buffer, roles.UserInput, roles.Constant, roles.SizeInput),
        *(roles.Tangent, roles.Residual, roles.SharedBytes, roles.GradientBase),
        *(roles.StateTensor, roles.HeldGradient, roles.NumberInput),
    ),
    _FIELDS,
)
_OUTPUT_ROLES = Records(
    "role",
    (
        *(roles.UserOutput, roles.InputMutation, roles.Gradient, roles.ResultGradient, roles.Residual),
        *(roles.GradientLeft, roles.NumberLeft),
    ),
    _FIELDS,
)
_OF_STEPS = (roles.StateTensor, roles.HeldGradient, roles.NumberInput, roles.GradientLeft, roles.NumberLeft)


def program_to_json(program: Program, *, of_dump: bool = True) -> dict[str, Any]:
    """The program as data for `json.dumps(..., allow_nan=False)`.

    of_dump: for a dump, which may hold subgraphs of control flow. Raises: NotSerializable for generators and other
    objects among the operands; for subgraphs in what is no dump, and those that hold what cannot be written.
    """
    try:
        held = None if of_dump else next((node for node in program.nodes if run_of(node) is not None), None)
        if held is not None:
            raise ValueError(f"{held.target.python} calls subgraphs, which only dumps may hold")  # type: ignore[attr-defined]
        return _Writer(program).written()
    except ValueError as error:
        raise NotSerializable(
            what=f"program {program.name}", reason=str(error), hint="look at its text instead: DOVETAIL_DUMP"
        ) from error


def program_from_json(
    data: object,
    *,
    allow: Iterable[str] = (),
    sizes: Callable[[Program], Mapping[str, Number] | None] | None = None,
    believe_descriptions: bool = False,
    may_be_step: bool = False,
    known: KnownResults | None = None,
) -> Program:
    """The program that `program_to_json` wrote, equal in everything but the identity of its values.

    Args:
        allow: operators of other packages that it may call, "space::name" or "space::name.overload".
        sizes: gives a number for each size symbol of a program's inputs. What a program with symbols says of its values
            is checked for these numbers only, and not at all without them.
        believe_descriptions: do not check what the program says of its values: for readers that only run it operator by
            operator, or look for a pass that has made a wrong program. Nothing may be decided by the descriptions.
        may_be_step: it may be a whole training step, of which only dumps have programs.
        known: what was found out about other programs of the same file.
    Raises: ValueError that says what is wrong with the data: among that, targets that no file may name, names that
    could mean anything else in generated source, descriptions that are not true, and entries that would not be written
    like this. BadOptionValue for `allow`.
    """
    allowed = Allowed(allow)
    if not isinstance(data, Mapping) or data.get("format") != FORMAT:
        raise ValueError(f'it does not say "format": "{FORMAT}"')
    if data.get("version") != VERSION:
        raise ValueError(f"it is of version {data.get('version')}; this dovetail reads version {VERSION}")
    try:
        program = _Reader(data, allowed).program()
        signature = program.signature
        if not believe_descriptions and any(run_of(node) is not None for node in program.nodes):
            raise ValueError("it calls subgraphs, which only dumps may hold")
        _check_step_roles(signature)
        if not may_be_step and any(isinstance(role, _OF_STEPS) for role in (*signature.inputs, *signature.outputs)):
            raise ValueError("it is a training step, which only dumps may hold")
        if _text(_Writer(program).written()) != _text(data):
            raise ValueError("it is not written as dovetail writes it")
        for part in with_inner_programs(program):
            verify_program(part, lambda node: bool(writes_of(node)))
    except InvalidProgram as error:
        raise ValueError(str(error)) from error
    except (KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError) as error:
        raise ValueError(f"it is damaged: {type(error).__name__}: {error}") from error
    if not believe_descriptions:
        check_descriptions(program, sizes(program) if sizes is not None else None, known)
    return program


def _text(data: object) -> str:
    return json.dumps(data, sort_keys=True)


class _Writer:
    def __init__(self, program: Program, depth: int = 0) -> None:
        check_count(depth, MAX_SUBGRAPH_DEPTH, "levels of subgraphs")
        self._program = program
        self._depth = depth
        self._origins: dict[Origin, int] = {}
        self._targets: dict[Target, str] = {}

    def written(self) -> dict[str, Any]:
        program = self._program
        _check_name_of(program)
        values = list(program.values())
        names = {value.name for value in values}
        if len(names) < len(values):
            raise ValueError("two of its values have one name")
        _check_names(program, values)
        _check_step_roles(program.signature)
        nodes = [self._node(node) for node in program.nodes]
        return {
            "format": FORMAT,
            "version": VERSION,
            "name": program.name,
            "stage": program.stage.value,
            "values": [{"name": value.name, **_meta(value.meta)} for value in values],
            "inputs": [value.name for value in program.inputs],
            "nodes": nodes,
            "outputs": [operand_to_json(operand) for operand in program.outputs],
            "signature": {
                "inputs": [_INPUT_ROLES.write(role) for role in program.signature.inputs],
                "outputs": [_OUTPUT_ROLES.write(role) for role in program.signature.outputs],
            },
            "origins": [[o.file, o.line, o.function, o.module] for o in self._origins],
        }

    def _node(self, node: Node) -> dict[str, Any]:
        run, args, more = run_of(node), list(node.args), dict[str, Any]()
        if run is not None:
            self._targets[node.target], args = subgraph_call(run, node.args)
            more["subgraphs"] = [_Writer(sub.program, self._depth + 1).written() for sub in sub_programs_of(node)]
        if node.target not in self._targets:
            self._targets[node.target] = target_text(node.target)
        return {
            "target": self._targets[node.target],
            "args": [operand_to_json(operand) for operand in args],
            "kwargs": {name: operand_to_json(operand) for name, operand in node.kwargs},
            "outputs": [None if value is None else value.name for value in node.outputs],
            "unpack": node.unpack,
            "phase": node.phase.value,
            "recomputed": node.recomputed,
            "origin": self._origins.setdefault(node.origin, len(self._origins)),
            **more,
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


def _check_name_of(program: Program) -> None:
    """It ends up in names of files and of generated code."""
    if not isinstance(program.name, str) or not _PROGRAM_NAME.fullmatch(program.name):
        raise ValueError(f"{program.name!r} is not a name for a program")


def _check_names(program: Program, values: list[Value]) -> None:
    """What is written into source as it is; and that no name stands for two things there."""
    symbols = {name for value in values for name in meta_symbols(value.meta)}
    for node in program.nodes:
        symbols.update(node.symbols())
        for name, _ in node.kwargs:
            checked_keyword(name)
    symbols.update(symbols_in(program.outputs))
    for name in symbols:
        checked_name(name)
    for value in values:
        checked_name(value.name)
        if value.name in symbols and value.meta != ScalarMeta(symbol(value.name)):
            raise ValueError(f"{value.name!r} is the name of a value and of a size")


def _check_step_roles(signature: Signature) -> None:
    """What roles of training steps say is bounded: labels are shown, and places count numbers."""
    for role in (*signature.inputs, *signature.outputs):
        if isinstance(role, roles.NumberLeft):
            if not 0 <= role.place < MAX_VALUES:
                raise ValueError(f"{role.place} is not a place of a number that is left")
        elif isinstance(role, _OF_STEPS) and (len(role.name) > _MAX_LABEL or not role.name.isprintable()):
            raise ValueError(f"{role.name[:80]!r} is not a label of a tensor or a number")


class _Reader:
    def __init__(self, data: Mapping[str, Any], allowed: Allowed, outer: _Reader | None = None) -> None:
        self._data = data
        self._allowed = allowed
        self.depth: int = 0 if outer is None else outer.depth + 1
        self.counts: dict[str, int] = {"nodes": 0, "values": 0} if outer is None else outer.counts
        check_count(self.depth, MAX_SUBGRAPH_DEPTH, "levels of subgraphs")
        for what, most in (("nodes", MAX_NODES), ("values", MAX_VALUES)):
            self.counts[what] += len(data[what])
            check_count(self.counts[what], most, what)
        self._values = {checked_name(entry["name"]): _read_value(entry) for entry in data["values"]}
        self._known: set[str] = set()
        self._origins = [_read_origin(entry) for entry in data["origins"]]
        self._targets: dict[str, Any] = {}
        self._symbols: set[str] = set()  # of sizes that inputs and the nodes so far tell

    def program(self) -> Program:
        data = self._data
        signature = data["signature"]
        self._known.update(data["inputs"])
        inputs = [self._values[name] for name in data["inputs"]]
        self._calls = Calls(inputs, of_subgraph=self.depth > 0)
        for value in inputs:
            self._symbols.update(_told(value.meta))
        program = Program(
            name=data["name"],
            stage=Stage(data["stage"]),
            inputs=tuple(inputs),
            nodes=tuple([self._read_node(place, entry) for place, entry in enumerate(data["nodes"])]),
            outputs=tuple(map(self._operand, data["outputs"])),
            signature=Signature(
                tuple(map(_INPUT_ROLES.read, signature["inputs"])), tuple(map(_OUTPUT_ROLES.read, signature["outputs"]))
            ),
        )
        self._check_symbols(symbols_in(program.outputs))
        for items, kinds in ((program.inputs, program.signature.inputs), (program.outputs, program.signature.outputs)):
            if kinds and len(kinds) != len(items):
                raise ValueError("it does not have one role for each input and output")
        return program

    def _read_node(self, place: int, entry: Mapping[str, Any]) -> Node:
        try:
            return self._node(entry)
        except ValueError as error:
            raise ValueError(f"node {place}: {error}") from error

    def _node(self, entry: Mapping[str, Any]) -> Node:
        text, args, programs = entry["target"], list(map(self._operand, entry["args"])), list[Program]()
        if is_subgraph_target(text):
            operator = read_operator(text)
            check_count(len(entry["subgraphs"]), len(FORMS[operator.name()].arguments), "subgraphs")
            programs = [self._subgraph(inner) for inner in entry["subgraphs"]]
            target, args = _sub_programs.over_programs(operator, checked_call(operator.name(), args, programs))
        else:
            if text not in self._targets:
                self._targets[text] = read_target(text, self._allowed)
            target = self._targets[text]
        node = Node(
            target=target,
            args=tuple(args),
            kwargs=tuple((checked_keyword(name), self._operand(item)) for name, item in entry["kwargs"].items()),
            outputs=tuple(None if name is None else self._values[name] for name in entry["outputs"]),
            unpack=_truth(entry["unpack"]),
            phase=Phase(entry["phase"]),
            origin=self._origins[entry["origin"]],
            recomputed=_truth(entry["recomputed"]),
        )
        if not node.unpack and len(node.outputs) > 1:
            raise ValueError(f"a call of {text} has several results, which are not unpacked")
        self._check_symbols(node.symbols())
        if programs:
            check_results(operator.name(), node, programs)
        self._calls.check(node)
        for value in node.results():
            self._known.add(value.name)
            self._symbols.update(_told(value.meta))
        return node

    def _subgraph(self, data: Any) -> Program:
        if not isinstance(data, Mapping) or (data.get("format"), data.get("version")) != (FORMAT, VERSION):
            raise ValueError("a subgraph is a program of this version")
        return _Reader(data, self._allowed, self).program()

    def _check_symbols(self, names: Iterable[str]) -> None:
        for name in names:
            if name not in self._symbols:
                raise ValueError(f"the size {name} is not known before it is read")

    def _operand(self, data: Any) -> Operand:
        return operand_from_json(data, self._value)

    def _value(self, name: str) -> Value:
        if name not in self._known:
            raise ValueError(f"{name!r} is read before it is computed")
        return self._values[name]


def _told(meta: Meta) -> Iterable[str]:
    """The size symbols that can be read off a value."""
    sizes = (meta.expr,) if isinstance(meta, ScalarMeta) else (*meta.shape, *meta.stride, meta.offset)
    return [str(size.args[0]) for size in sizes if isinstance(size, SizeExpr) and size.op == "symbol"]


def _truth(data: object) -> bool:
    if not isinstance(data, bool):
        raise ValueError(f"{data!r} is not a truth value")
    return data


def _read_origin(entry: Any) -> Origin:
    file, line, function, module = entry
    if type(line) is not int:
        raise ValueError(f"{line!r} is not a number of a line")
    return Origin(checked_line(file), line, checked_line(function), checked_line(module))


def _read_value(entry: Mapping[str, Any]) -> Value:
    return Value(entry["name"], _read_meta(entry))


def _read_meta(entry: Mapping[str, Any]) -> Meta:
    if "scalar" in entry:
        return ScalarMeta(checked_size(entry["scalar"]))
    check_count(len(entry["shape"]), MAX_RANK, "dimensions in a tensor")
    shape, stride = (tuple(map(_integer, entry[name])) for name in ("shape", "stride"))
    dtype, device, storage = read_named("dtype", entry["dtype"]), read_device(entry["device"]), entry["storage"]
    if device.type == "cpu" and device.index is not None:
        raise ValueError("tensors on the CPU have no device number")
    if len(shape) != len(stride) or type(storage) is not int:
        raise ValueError(f"{entry['name']} has a description that no tensor can have")
    return TensorMeta(shape, stride, _integer(entry["offset"]), dtype, device, storage)


def _integer(data: object) -> int | SizeExpr:
    size = checked_size(data)
    if isinstance(size, float) or not is_whole(size) or (isinstance(size, int) and not 0 <= size < _MAX_SIZE):
        raise ValueError(f"{size!r} is not a size")
    return size
