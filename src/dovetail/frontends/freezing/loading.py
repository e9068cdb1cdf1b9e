"""`dovetail.load`: frozen modules from files; `freezing.saving` says what is in them."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from dovetail.artifact.container import Container, open_container
from dovetail.artifact.descriptions import sizes_for
from dovetail.artifact.known_results import KnownResults
from dovetail.artifact.operand_json import operand_from_json
from dovetail.artifact.plan_json import plan_from_json
from dovetail.artifact.program_json import program_from_json
from dovetail.artifact.source_names import checked_keyword, checked_size
from dovetail.artifact.target_text import Allowed
from dovetail.artifact.tensors import load_tensors
from dovetail.artifact.tree import check_containers
from dovetail.artifact.tree_json import tree_from_json
from dovetail.deferred import deferred
from dovetail.errors import BadOptionValue, FrozenElsewhere
from dovetail.execute.compiled import CompiledProgram
from dovetail.execute.executors.checked import with_checks
from dovetail.execute.protocol import ExecutorList, RunnableProgram
from dovetail.frontends.freezing.call_form import CallForm, Leaf
from dovetail.frontends.freezing.file_fields import list_of, no_value, number_of, parameter_of, text_of, texts_of
from dovetail.frontends.freezing.method import FrozenMethod
from dovetail.frontends.freezing.module import FrozenModule
from dovetail.frontends.freezing.nesting import Saved
from dovetail.frontends.freezing.pool import Pool
from dovetail.frontends.freezing.running import Running
from dovetail.frontends.freezing.saving import FORMAT, INDEX, VERSION, Contents, check_path, seeding_in
from dovetail.frontends.freezing.variant import FrozenProgram
from dovetail.frontends.freezing.weights import MEMORY, Sources
from dovetail.frontends.size_guard import SizeGuard
from dovetail.frontends.untested_devices import tell_if_untested
from dovetail.ir.calling import CallPlan, FromSlot
from dovetail.ir.plan_inputs import inputs_touched
from dovetail.ir.program import Phase, Program, Stage, TensorMeta, Value, meta_symbols, values_in
from dovetail.ir.signature import InputMutation
from dovetail.ir.sizes import Scalar
from dovetail.ops.packing import is_packing, takes_packed
from dovetail.ops.quantized import computes_in_int8
from dovetail.passes.collection import collection_paused
from dovetail.pipeline.doors import LOAD
from dovetail.pipeline.driver import PASS_NAMES
from dovetail.pipeline.dump import Dump
from dovetail.pipeline.executor_list import make_executors
from dovetail.pipeline.freezing import Folded, Unfolded, finish
from dovetail.pipeline.options import Options, resolve_options
from dovetail.pipeline.passes import Context
from dovetail.torch_compat import onednn_low_precision
from dovetail.torch_compat.version import ensure_supported_torch, installed_torch_version

if TYPE_CHECKING:
    from dovetail.frontends.generation import generator
    from dovetail.frontends.generation import habits as generation_habits
else:
    generator = deferred("dovetail.frontends.generation.generator")
    generation_habits = deferred("dovetail.frontends.generation.habits")

_SAVED = "the path of a file that FrozenModule.save wrote"


@collection_paused()
def load(
    path: str | Path,
    *,
    verify: Literal["fast", "full"] = "fast",
    containers: Mapping[str, type] | None = None,
    any_torch: bool = False,
    prepack: bool = True,
    allow: Iterable[str] = (),
    **options: Any,
) -> FrozenModule:
    """Load a frozen module that `FrozenModule.save` wrote, without the model's code.

    Constants are mapped from the file: processes that load it share their pages, and pages are read on first use. State
    is private.

    Args:
        path: the file.
        verify: "fast": checksums of all bytes. "full": SHA-256 of all bytes as well.
        containers: classes of results by qualified name, for instance {"package.module.Output": Output}. Results of
            other classes are returned as read-only `NamedResult`s with the same fields.
        any_torch: accept a file of another torch version.
        prepack: pack weights for this machine, where the program does so. Packed weights are private memory; with
            False, the program uses the mapped ones.
        allow: operators of other packages that the file may call, for instance ("torchvision::nms",). The operators of
            torch that a file may call are a fixed list.
        options: see `dovetail.pipeline.options`: `executors`, `skip`, `stop_after`.

    Returns:
        A module that is called like the original model.

    Raises:
        BadArtifact: the file is damaged, was not written by dovetail, or calls what no file may call.
        FrozenElsewhere: the file needs another torch version or a missing device.
        BadOptionValue: an option is wrong.
    """
    ensure_supported_torch()
    resolved = resolve_options(options, PASS_NAMES, LOAD)
    check_path(path, "files are mapped by their path", _SAVED)
    for option, value in (("prepack", prepack), ("any_torch", any_torch)):
        if not isinstance(value, bool):
            raise BadOptionValue(option=option, value=value, reason="it is a flag", expected="True or False")
    classes = {} if containers is None else containers
    if not isinstance(classes, Mapping) or not all(isinstance(cls, type) for cls in classes.values()):
        raise _bad_containers(containers, "it names no classes")
    container = open_container(path, verify=verify)
    allowed = tuple(allow) if isinstance(allow, Iterable) and not isinstance(allow, str) else (allow,)
    Allowed(allowed)  # says at once what is not a name of an operator
    reader = _Reader(container, dict(classes), any_torch, prepack, allowed, resolved)
    with torch.inference_mode(False):
        return container.decode(INDEX, reader.module)


@collection_paused()
def read_contents(path: str | Path, *, allow: Iterable[str] = ()) -> tuple[Contents, str, int]:
    """What a file holds, the torch that wrote it, and how many bytes it has. Nothing of it runs.

    All checks of `load` are made, but that it could run here: the file may be of another torch, or for a device that is
    not here. Constants stay where they are mapped. Raises: BadArtifact; OtherArtifactVersion.
    """
    ensure_supported_torch()
    check_path(path, "files are mapped by their path", _SAVED)
    container = open_container(path)
    reader = _Reader(container, {}, True, False, tuple(allow), resolve_options({}, PASS_NAMES, LOAD), runs=False)
    with torch.inference_mode(False):
        return container.decode(INDEX, reader.contents), reader.torch, Path(path).stat().st_size


def _bad_containers(given: object, reason: str) -> BadOptionValue:
    expected = 'classes by their names: {"package.module.Output": Output}'
    return BadOptionValue(option="containers", value=given, reason=reason, expected=expected)


class _Reader:
    def __init__(
        self,
        container: Container,
        containers: Mapping[str, type],
        any_torch: bool,
        packs: bool,
        allow: tuple[str, ...],
        options: Options,
        *,
        runs: bool = True,
    ) -> None:
        """runs: what is read is to run here."""
        self.torch = ""  # that wrote the file
        self._runs = runs
        self._container = container
        self._containers = containers
        self._any_torch = any_torch
        self._packs = packs
        self._allow = allow
        self._options = options
        self._known = KnownResults()
        self._executors = with_checks(make_executors(options), is_described=True)
        self._state: frozenset[str] = frozenset()
        self._weights: frozenset[str] = frozenset()  # names that programs may hold tensors by before folding

    def module(self, data: Any) -> FrozenModule:
        """The module. Raises: ValueError, and the errors of `load`."""
        contents = self.contents(data)
        finishers = [self._finish for method in contents.methods.values() for _ in method.programs]
        running = Running(contents.methods, self._executors, finishers, packs=self._packs)
        running.bind(contents.pool)
        if contents.generation is None:
            return FrozenModule(contents.name, running, contents.pool, sources=contents.sources)
        habits = generation_habits.habits_from_json(contents.generation)
        return generator.FrozenGenerator(contents.name, running, contents.pool, habits=habits, sources=contents.sources)

    def contents(self, data: Any) -> Contents:
        """What the file holds. Raises: ValueError, and the errors of `load`."""
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise ValueError(f'it does not say "format": "{FORMAT}"')
        if data.get("version") != VERSION:
            raise ValueError(f"it is of version {data.get('version')}; this dovetail reads version {VERSION}")
        try:
            self.torch = text_of(data["torch"])
            self._check_torch(self.torch)
            return self._contents(data)
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            raise ValueError(f"it is damaged: {type(error).__name__}: {error}") from error

    def _contents(self, data: Any) -> Contents:
        state = frozenset(texts_of(data["state"]))
        tensors = load_tensors(self._container, private=state)
        origins = {text_of(name): tuple(texts_of(dotted)) for name, dotted in data["origins"].items()}
        kept = load_tensors(self._container, "sources")
        self._state = state
        self._weights = frozenset((*tensors, *origins, *kept))
        methods = {_method_name(name): self._method(name, entry, tensors) for name, entry in data["methods"].items()}
        sources = Sources(kept, MEMORY, is_complete=data["sources_complete"] is True)
        pool = Pool(tensors, origins, state, frozenset(texts_of(data["unused"])))
        generation = data.get("generation")  # of a model that generates
        if generation is not None:
            generation_habits.habits_from_json(generation)
            generation_habits.check_generates(methods, tensors, state)
        return Contents(text_of(data["name"]), methods, pool, sources, generation)

    def _finish(self, folded: Folded, executors: ExecutorList) -> RunnableProgram:
        program = finish(folded, Context(self._options), Dump(None, folded.program.name, {}))
        return CompiledProgram(program, executors, dying=())  # as where it is frozen: arguments are the caller's

    def _check_torch(self, wanted: str) -> None:
        found = installed_torch_version()
        if not self._any_torch and wanted.split(".")[:2] != found.split(".")[:2]:
            hint = f"install torch {wanted}, freeze again with this one, or load with any_torch=True"
            raise FrozenElsewhere(
                path=self._container.path, wanted=f"torch {wanted}", found=f"torch {found}", hint=hint
            )

    def _method(self, name: str, entry: Any, tensors: Mapping[str, torch.Tensor]) -> FrozenMethod:
        leaves = tuple([self._leaf(leaf) for leaf in list_of(entry["leaves"])])
        structure = Saved(tree_from_json(entry["structure"]), self._containers)
        signature = inspect.Signature([parameter_of(parameter) for parameter in list_of(entry["signature"])])
        form = CallForm(name, signature, structure, leaves)
        programs = tuple([self._frozen(one, form, tensors) for one in list_of(entry["variants"])])
        if not programs or structure.structure.leaves() != len(leaves):
            raise ValueError(f"method {name} has no program, or its leaves do not match its structure")
        # files of earlier days do not say which passes a method went through
        passes = tuple([checked_keyword(one) for one in texts_of(entry.get("passes", []))])
        return FrozenMethod(form, programs, tuple(texts_of(entry["notes"])), passes)

    def _leaf(self, entry: Any) -> Leaf:
        name = text_of(entry["name"])
        if "tensor" not in entry:
            return Leaf(name, None, operand_from_json(entry["value"], no_value))
        kind = [operand_from_json(item, no_value) for item in list_of(entry["tensor"])]
        dtype, device = kind[:2]
        if len(kind) != 3:
            raise ValueError(f"{name} has a description that no tensor can have")
        if not isinstance(dtype, torch.dtype) or not isinstance(device, torch.device):
            raise ValueError(f"{name} has no dtype or no device")
        self._check_device(device)
        return Leaf(name, (dtype, device, number_of(entry["tensor"][2])))

    def _check_device(self, device: torch.device) -> None:
        if not self._runs:
            return
        if device.type == "cuda" and not torch.cuda.is_available():
            hint = "freeze the model on a device that exists where it is loaded"
            raise FrozenElsewhere(path=self._container.path, wanted=f"device {device}", found="no CUDA", hint=hint)
        tell_if_untested(device)

    def _check_processor(self, program: Program) -> None:
        is_int8 = self._runs and any(computes_in_int8(node.target) for node in program.nodes)
        if is_int8 and not onednn_low_precision.multiplies_int8():
            wanted, found = "a processor with exact products of 8-bit integers (VNNI)", "none"
            hint = 'freeze the model with passes="fast" for this machine'
            raise FrozenElsewhere(path=self._container.path, wanted=wanted, found=found, hint=hint)

    def _frozen(self, entry: Any, form: CallForm, tensors: Mapping[str, torch.Tensor]) -> FrozenProgram:
        stem = text_of(entry["program"])
        arguments = tuple([number_of(place, len(form.leaves)) for place in list_of(entry["arguments"])])
        held = tuple(texts_of(entry["held"]))
        facts = [checked_size(fact) for fact in list_of(entry["facts"])]
        program, plan = self._program(f"{stem}.json", facts)
        _check_packing(program, program.inputs[len(arguments) :])
        self._check_processor(program)
        asked = frozenset(texts_of(entry["asked"]))
        if any(form.leaves[place].kind is None for place in arguments):
            raise ValueError(f"{stem} takes an argument that is not a tensor")
        if len(set(arguments)) < len(arguments) or len(set(held)) < len(held):
            raise ValueError(f"{stem} takes one tensor for two of its inputs, which it was not recorded for")
        if len(program.inputs) != len(arguments) + len(held):
            raise ValueError(f"{stem} has other inputs than its call")
        for name, value in zip(held, program.inputs[len(arguments) :], strict=True):
            _check_held(name, value, tensors)
        results = tree_from_json(entry["results"])
        if results.leaves() != len(plan.outputs):
            raise ValueError(f"{stem} gives {len(plan.outputs)} results for a structure of {results.leaves()}")
        try:
            check_containers(results, self._containers)
        except ValueError as error:
            raise _bad_containers(self._containers, str(error)) from None
        return FrozenProgram(
            folded=Folded(program, plan, held),
            arguments=arguments,
            results=Saved(results, self._containers),
            shapes=SizeGuard.of(program.inputs[: len(arguments)], facts),
            written=frozenset(number_of(place, len(form.leaves)) for place in list_of(entry["written"])),
            same=tuple([_same(pair, form) for pair in list_of(entry["same"])]),
            unfolded=partial(self._unfolded, f"{stem}.unfolded.json", asked, len(arguments), facts),
        )

    def _unfolded(self, member: str, asked: frozenset[str], arguments: int, facts: Sequence[Scalar]) -> Unfolded:
        program, plan = self._program(member, facts)
        if len(program.inputs) < arguments:
            raise self._container.refusal(member, "it has fewer inputs than its call")
        for value in program.inputs[arguments:]:
            if value.name not in self._weights or not value.is_tensor or any(meta_symbols(value.meta)):
                raise self._container.refusal(member, f"its input {value.name} is not a weight of the file")
        touched = inputs_touched(program, plan)
        for number, value in enumerate(program.inputs[arguments:], start=arguments):
            if number in touched and value.name not in self._state:
                raise self._container.refusal(member, f"it writes to {value.name}, which is not state")
        return Unfolded(program, plan, asked, arguments)

    def _program(self, member: str, facts: Sequence[Scalar]) -> tuple[Program, Any]:
        def read(data: Any) -> tuple[Program, Any]:
            if not isinstance(data, dict) or set(data) != {"program", "plan"}:
                raise ValueError("it is not a program with its plan")
            program = program_from_json(
                data["program"],
                allow=self._allow,
                sizes=lambda program: sizes_for(program, facts),
                known=self._known,
            )
            _check_effects(program)
            for value in (*program.inputs, *(value for node in program.nodes for value in node.results())):
                if isinstance(value.meta, TensorMeta):
                    self._check_device(value.meta.device)
            plan = plan_from_json(data["plan"], program)
            if len(plan.differentiable) != len(program.outputs):
                raise ValueError("its plan has another number of outputs than its program")
            if plan.extras or plan.packs:
                raise ValueError("a frozen program takes the arguments of its call, and its plan takes others")
            _check_writes(program, plan)
            return program, plan

        return self._container.decode(member, read)


def _check_effects(program: Program) -> None:
    """A frozen program draws random numbers; it neither seeds the process's generator nor runs before it is pure."""
    if program.stage in (Stage.IMPURE, Stage.IN_PLACE):
        raise ValueError(f"a frozen program is not of the stage {program.stage.value}")
    seeding = seeding_in(program)
    if seeding is not None:
        raise ValueError(f"a frozen program does not set the state of the process's generator ({seeding.target})")


def _check_packing(program: Program, held: Collection[Value]) -> None:
    """Raise ValueError unless constants are packed, for primitives over packed weights only."""
    packed = {value for node in program.nodes if is_packing(node.target) for value in node.results()}
    if not packed:
        return
    for node in program.nodes:
        if is_packing(node.target) and node.args[0] not in held:
            raise ValueError(f"{node.target} packs what is not a constant")
        operands = list(node.operands())
        for value in values_in(node.args[1:2]) if takes_packed(node.target) else ():
            if value in packed:
                operands.remove(value)
        if not packed.isdisjoint(operands):
            raise ValueError(f"{node.target} reads a packed weight, which has no plain memory")
    if not packed.isdisjoint(values_in(program.outputs)):
        raise ValueError("a packed weight is a result")


def _check_writes(program: Program, plan: CallPlan) -> None:
    """An output becomes the contents of the input that its role names, or is a result; never both."""
    writes = {
        (slot, role.input) for slot, role in enumerate(program.signature.outputs) if isinstance(role, InputMutation)
    }
    told = [(write.slot, write.input) for write in plan.writes]
    if len(set(told)) < len(told) or not writes.issuperset(told):
        raise ValueError("its plan does not write the inputs that its program says")
    slots = {slot for slot, _ in told}
    for rule in plan.sources():
        if isinstance(rule, FromSlot) and rule.slot in slots:
            raise ValueError(f"output {rule.slot} is written to an input, and is a result")
    if any(node.phase is not Phase.FORWARD for node in program.nodes):
        raise ValueError("a frozen program has no backward phase")


def _check_held(name: str, value: Value, tensors: Mapping[str, torch.Tensor]) -> None:
    tensor, meta = tensors.get(name), value.meta
    if tensor is None or not isinstance(meta, TensorMeta) or any(meta_symbols(meta)):
        raise ValueError(f"there is no constant {name}")
    if (tuple(tensor.shape), tensor.dtype, tensor.device) != (meta.shape, meta.dtype, meta.device):
        raise ValueError(f"constant {name} is not what the program takes")


def _same(pair: Any, form: CallForm) -> tuple[int, int]:
    place, earlier = (number_of(number, len(form.leaves)) for number in list_of(pair))
    kind = form.leaves[place].kind
    if kind is None or earlier >= place or form.leaves[earlier].kind != kind:
        raise ValueError(f"arguments {earlier} and {place} cannot be one tensor")
    return place, earlier


def _method_name(name: object) -> str:
    text = text_of(name)
    if not text.isidentifier() or (text != "forward" and hasattr(FrozenModule, text)):
        raise ValueError(f"{text!r} is not a name of a method")
    return text
