"""`dovetail.load`: frozen modules from files; `freezing.saving` says what is in them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch

from dovetail.artifact.container import Container, open_container
from dovetail.artifact.operand_json import operand_from_json
from dovetail.artifact.plan_json import plan_from_json
from dovetail.artifact.program_json import program_from_json
from dovetail.artifact.tensors import load_tensors
from dovetail.artifact.tree_json import tree_from_json
from dovetail.errors import BadOptionValue, FrozenElsewhere, InvalidProgram
from dovetail.frontends.freezing.call_form import CallForm, Leaf
from dovetail.frontends.freezing.method import FrozenMethod
from dovetail.frontends.freezing.module import FrozenModule
from dovetail.frontends.freezing.nesting import Saved
from dovetail.frontends.freezing.pool import Pool
from dovetail.frontends.freezing.running import Running
from dovetail.frontends.freezing.saving import FORMAT, INDEX, VERSION
from dovetail.frontends.freezing.variant import Variant
from dovetail.frontends.freezing.weights import MEMORY, Sources
from dovetail.frontends.size_guard import SizeGuard
from dovetail.ir.program import Program, TensorMeta, Value
from dovetail.ir.sizes import from_json as read_size
from dovetail.ir.stages import verify_program
from dovetail.pipeline.compile import make_executors
from dovetail.pipeline.driver import writes
from dovetail.pipeline.dump import Dump
from dovetail.pipeline.freezing import Folded, Unfolded, finish
from dovetail.pipeline.options import Options, resolve_options
from dovetail.torch_compat.version import ensure_supported_torch, installed_torch_version

_KINDS = {
    kind.name: kind
    for kind in (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.VAR_POSITIONAL,
        inspect.Parameter.KEYWORD_ONLY,
        inspect.Parameter.VAR_KEYWORD,
    )
}


def load(
    path: str | Path,
    *,
    verify: Literal["fast", "full"] = "fast",
    containers: Mapping[str, type] | None = None,
    any_torch: bool = False,
    prepack: bool = True,
    **options: Any,
) -> FrozenModule:
    """A frozen module from a file that `FrozenModule.save` wrote, without the code of the model.

    Constants are mapped from the file: processes that load it share their pages, and nothing is read before it is
    used. State is private.

    Args:
        verify: "fast": checksums of all bytes. "full": SHA-256 of all bytes as well.
        containers: classes of results by qualified name, for instance {"package.module.Output": Output}. A result of
            a class that is not named comes as a read-only `NamedResult` with the same fields.
        any_torch: accept a file of another version of torch.
        prepack: pack the weights that the program packs, for this machine. Packed weights are private memory; without,
            the program runs over the mapped ones.
        options: see `dovetail.pipeline.options`: `executors`.
    Raises: BadArtifact for a file that is damaged or none of dovetail's; FrozenElsewhere when it needs another torch
        or a device that is not here.
    """
    ensure_supported_torch()
    resolved = resolve_options(options)
    if not isinstance(prepack, bool):
        raise BadOptionValue(option="prepack", value=prepack, reason="it is a switch", expected="True or False")
    container = open_container(path, verify=verify)
    reader = _Reader(container, dict(containers or {}), any_torch, prepack, resolved)
    with torch.inference_mode(False):
        return container.decode(INDEX, reader.module)


class _Reader:
    def __init__(
        self, container: Container, containers: Mapping[str, type], any_torch: bool, packs: bool, options: Options
    ) -> None:
        self._container = container
        self._containers = containers
        self._any_torch = any_torch
        self._packs = packs
        self._options = options
        self._executors = make_executors(options)

    def module(self, data: Any) -> FrozenModule:
        """The module. Raises: ValueError, and the errors of `load`."""
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise ValueError(f'it does not say "format": "{FORMAT}"')
        if data.get("version") != VERSION:
            raise ValueError(f"it is of version {data.get('version')}; this dovetail reads version {VERSION}")
        self._check_torch(_text(data["torch"]))
        try:
            return self._module(data)
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            raise ValueError(f"it is damaged: {type(error).__name__}: {error}") from error

    def _module(self, data: Any) -> FrozenModule:
        state = frozenset(_texts(data["state"]))
        tensors = load_tensors(self._container, private=state)
        origins = {_text(name): tuple(_texts(dotted)) for name, dotted in data["origins"].items()}
        methods = {_method_name(name): self._method(name, entry, tensors) for name, entry in data["methods"].items()}
        kept = load_tensors(self._container, "sources")
        sources = Sources(kept, MEMORY, is_complete=data["sources_complete"] is True)
        pool = Pool(tensors, origins, state, frozenset(_texts(data["unused"])))
        finishers = [self._finish for method in methods.values() for _ in method.variants]
        running = Running(methods, self._executors, finishers, packs=self._packs)
        running.bind(pool)
        return FrozenModule(_text(data["name"]), running, pool, sources=sources)

    def _finish(self, folded: Folded) -> Program:
        return finish(folded, self._options, Dump(None, folded.program.name, {}, False, None, None), {})

    def _check_torch(self, wanted: str) -> None:
        found = installed_torch_version()
        if not self._any_torch and wanted.split(".")[:2] != found.split(".")[:2]:
            hint = f"install torch {wanted}, freeze again with this one, or load with any_torch=True"
            raise FrozenElsewhere(
                path=self._container.path, wanted=f"torch {wanted}", found=f"torch {found}", hint=hint
            )

    def _method(self, name: str, entry: Any, tensors: Mapping[str, torch.Tensor]) -> FrozenMethod:
        leaves = tuple([self._leaf(leaf) for leaf in entry["leaves"]])
        structure = Saved(tree_from_json(entry["structure"]), self._containers)
        signature = inspect.Signature([_parameter(parameter) for parameter in entry["signature"]])
        form = CallForm(name, signature, structure, leaves)
        variants = tuple([self._variant(variant, form, tensors) for variant in entry["variants"]])
        if not variants or structure.structure.leaves() != len(leaves):
            raise ValueError(f"method {name} has no program, or other leaves than its structure")
        return FrozenMethod(form, variants, tuple(_texts(entry["notes"])))

    def _leaf(self, entry: Any) -> Leaf:
        name = _text(entry["name"])
        if "tensor" not in entry:
            return Leaf(name, None, operand_from_json(entry["value"], _no_value))
        dtype, device = (operand_from_json(item, _no_value) for item in entry["tensor"][:2])
        if not isinstance(dtype, torch.dtype) or not isinstance(device, torch.device):
            raise ValueError(f"{name} has no dtype or no device")
        self._check_device(device)
        return Leaf(name, (dtype, device, _number(entry["tensor"][2])))

    def _check_device(self, device: torch.device) -> None:
        if device.type == "cuda" and not torch.cuda.is_available():
            hint = "freeze the model on a device that is there where it is loaded"
            raise FrozenElsewhere(path=self._container.path, wanted=f"device {device}", found="no CUDA", hint=hint)

    def _variant(self, entry: Any, form: CallForm, tensors: Mapping[str, torch.Tensor]) -> Variant:
        stem = _text(entry["program"])
        arguments = tuple([_number(place, len(form.leaves)) for place in entry["arguments"]])
        held = tuple(_texts(entry["held"]))
        program, plan = self._program(f"{stem}.json")
        unfolded, unfolded_plan = self._program(f"{stem}.unfolded.json")
        if any(form.leaves[place].kind is None for place in arguments):
            raise ValueError(f"{stem} takes an argument that is no tensor")
        if len(program.inputs) != len(arguments) + len(held) or len(unfolded.inputs) < len(arguments):
            raise ValueError(f"{stem} has other inputs than its call")
        for name, value in zip(held, program.inputs[len(arguments) :], strict=True):
            _check_held(name, value, tensors)
        for value in (*program.inputs, *(value for node in program.nodes for value in node.results())):
            if isinstance(value.meta, TensorMeta):
                self._check_device(value.meta.device)
        guard = SizeGuard.of(unfolded.inputs[: len(arguments)], [read_size(fact) for fact in entry["facts"]])
        return Variant(
            folded=Folded(program, plan, held),
            arguments=arguments,
            results=Saved(tree_from_json(entry["results"]), self._containers),
            guard=guard,
            written=frozenset(_number(place, len(form.leaves)) for place in entry["written"]),
            unfolded=Unfolded(unfolded, unfolded_plan, frozenset(_texts(entry["asked"])), len(arguments)),
        )

    def _program(self, member: str) -> tuple[Program, Any]:
        def read(data: Any) -> tuple[Program, Any]:
            if not isinstance(data, dict) or set(data) != {"program", "plan"}:
                raise ValueError("it is no program with its plan")
            program = program_from_json(data["program"])
            try:
                verify_program(program, writes)
            except InvalidProgram as error:
                raise ValueError(str(error)) from error
            return program, plan_from_json(data["plan"], program)

        return self._container.decode(member, read)


def _check_held(name: str, value: Value, tensors: Mapping[str, torch.Tensor]) -> None:
    tensor, meta = tensors.get(name), value.meta
    if tensor is None or not isinstance(meta, TensorMeta):
        raise ValueError(f"there is no constant {name}")
    if (tuple(tensor.shape), tensor.dtype, tensor.device) != (meta.shape, meta.dtype, meta.device):
        raise ValueError(f"constant {name} is not what the program takes")


def _parameter(entry: Any) -> inspect.Parameter:
    default = [operand_from_json(item, _no_value) for item in entry["default"]]
    kind = _KINDS[_text(entry["kind"])]
    return inspect.Parameter(_text(entry["name"]), kind, default=default[0] if default else inspect.Parameter.empty)


def _no_value(name: str) -> Value:
    raise ValueError(f"value {name!r} stands where no values are")


def _method_name(name: object) -> str:
    text = _text(name)
    if not text.isidentifier() or (text != "forward" and hasattr(FrozenModule, text)):
        raise ValueError(f"{text!r} is no name of a method")
    return text


def _text(data: object) -> str:
    if not isinstance(data, str):
        raise ValueError(f"{data!r} is no text")
    return data


def _texts(data: object) -> list[str]:
    if not isinstance(data, list):
        raise ValueError(f"{data!r} is no list")
    return [_text(item) for item in data]


def _number(data: object, below: int = 1 << 16) -> int:
    if type(data) is not int or not 0 <= data < below:
        raise ValueError(f"{data!r} is no number below {below}")
    return data
