"""What is in a `.dovetail` file: methods and how they are called, programs, constants, and the memory of a call.

Nothing of the file runs. It is checked as `dovetail.load` checks it; constants stay mapped from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from dovetail.analysis.liveness import NOTHING, simulate_peak
from dovetail.artifact.descriptions import sizes_for
from dovetail.artifact.target_text import target_text
from dovetail.errors import BadOptionValue
from dovetail.frontends.freezing.loading import read_contents
from dovetail.frontends.freezing.method import FrozenMethod
from dovetail.frontends.freezing.pool import Pool, size_bytes
from dovetail.frontends.freezing.saving import VERSION
from dovetail.frontends.freezing.variant import FrozenProgram
from dovetail.ir.calling import FromConstant, FromInput, FromSlot, FromView, OutputRule, WithLook
from dovetail.ir.program import Program, TensorMeta, Value, meta_symbols
from dovetail.ir.sizes import Number, holds
from dovetail.memory.in_arena import placeables, plan_in_arena
from dovetail.pipeline.dump import Dump
from dovetail.pipeline.freezing import finish
from dovetail.pipeline.options import Options
from dovetail.pipeline.passes import Context

_TRIED = (*range(2, 17), 24, 32, 48, 64, 96, 128, 256, 512)


@dataclass(frozen=True, slots=True)
class ProgramRow:
    """One program of a method.

    takes: what its calls are like, by the argument's name: descriptions of tensors, or values. gives: its results.
    facts: on sizes, that a call must keep. sizes: for which the memory was simulated. peak_bytes: the most that
    intermediate results and outputs take at once, without arguments, constants, and what operators take for
    themselves. arena_bytes: of these, what can lie in one block for the whole call. operators: calls of each.
    """

    name: str
    takes: Mapping[str, str]
    gives: tuple[str, ...]
    facts: tuple[str, ...]
    nodes: int
    operators: Mapping[str, int]
    sizes: Mapping[str, Number]
    peak_bytes: int | None
    arena_bytes: int | None


@dataclass(frozen=True, slots=True)
class MethodRow:
    """A method: how it is called, its programs, the passes of freezing that it went through, and what was fixed."""

    name: str
    signature: str
    passes: tuple[str, ...]
    specialized: tuple[str, ...]
    programs: tuple[ProgramRow, ...]


@dataclass(frozen=True, slots=True)
class ConstantRow:
    """A tensor that the file holds. weights: its names in the model, if it has any. is_state: calls write it."""

    name: str
    tensor: str
    bytes: int
    weights: tuple[str, ...]
    is_state: bool


@dataclass(frozen=True, slots=True)
class FrozenFile:
    """What is in a file. constant_bytes: of all storages, each once. source_bytes: of weights from before folding."""

    path: str
    bytes: int
    format_version: int
    torch: str
    model: str
    methods: tuple[MethodRow, ...]
    constants: tuple[ConstantRow, ...]
    constant_bytes: int
    source_bytes: int


def inspect_file(path: str | Path, *, allow: Iterable[str] = (), sizes: Mapping[str, int] | None = None) -> FrozenFile:
    """What is in a file that `FrozenModule.save` wrote. Nothing of it runs.

    allow: as `dovetail.load` takes it. sizes: numbers for size symbols, for which memory is simulated.
    Raises: BadArtifact for a file that is damaged, foreign, or calls what no file may call; OtherArtifactVersion;
    BadOptionValue for a size that no program has, or that no call could have.
    """
    contents, torch_version, file_bytes = read_contents(path, allow=allow)
    given = dict(sizes or {})
    small = next((name for name, number in given.items() if number < 2), None)
    if small is not None:
        reason = "size symbols stand for sizes above 1, which have programs of their own"
        raise BadOptionValue(option="size", value=f"{small}={given[small]}", reason=reason, expected="a number from 2")
    known = {name for method in contents.methods.values() for one in method.programs for name in _symbols(one)}
    unknown = next((name for name in given if name not in known), None)
    if unknown is not None:
        expected = f"one of {', '.join(sorted(known))}" if known else "no size: all are fixed"
        raise BadOptionValue(option="size", value=unknown, reason="the file has no such size", expected=expected)
    kept = contents.sources.read() if contents.sources is not None else {}
    return FrozenFile(
        path=str(path),
        bytes=file_bytes,
        format_version=VERSION,
        torch=torch_version,
        model=contents.name,
        methods=tuple([_method(name, method, given) for name, method in contents.methods.items()]),
        constants=tuple(_constants(contents.pool)),
        constant_bytes=size_bytes(contents.pool.tensors.values()),
        source_bytes=size_bytes(kept.values()),
    )


def _method(name: str, method: FrozenMethod, given: Mapping[str, int]) -> MethodRow:
    programs = tuple([_program(one, method, given) for one in method.programs])
    return MethodRow(name, f"{name}{method.form.signature}", method.passes, method.notes, programs)


def _program(one: FrozenProgram, method: FrozenMethod, given: Mapping[str, int]) -> ProgramRow:
    program, leaves = one.folded.program, method.form.leaves
    inputs = dict(zip(one.arguments, program.inputs, strict=False))
    takes = {
        leaf.name: _described(inputs[place].meta) if place in inputs else repr(leaf.value)
        for place, leaf in enumerate(leaves)
        if place in inputs or leaf.kind is None
    }
    sizes = _sizes(one, given)
    peak, arena = (None, None) if sizes is None else _memory(one, sizes)
    return ProgramRow(
        name=program.name,
        takes=takes,
        gives=tuple([_result(rule, program) for rule in one.folded.plan.outputs]),
        facts=tuple(map(str, one.shapes.facts)),
        nodes=len(program.nodes),
        operators=dict(Counter(target_text(node.target) for node in program.nodes).most_common()),
        sizes=sizes or {},
        peak_bytes=peak,
        arena_bytes=arena,
    )


def _symbols(one: FrozenProgram) -> set[str]:
    return {name for value in one.folded.program.inputs for name in meta_symbols(value.meta)}


def _sizes(one: FrozenProgram, given: Mapping[str, int]) -> dict[str, Number] | None:
    """Numbers for the symbols of a program, those given among them; None where no call is known to have such sizes."""
    symbols, facts = sorted(_symbols(one)), one.shapes.facts
    fixed = {name: number for name, number in given.items() if name in symbols}
    if not fixed:
        return sizes_for(one.folded.program, facts)
    known = sizes_for(one.folded.program, facts) or {}
    for others in (known, *(dict.fromkeys(symbols, number) for number in _TRIED)):
        sizes = {**others, **fixed}
        if all(holds(fact, sizes) for fact in facts):
            return sizes
    return None


def _memory(one: FrozenProgram, sizes: Mapping[str, Number]) -> tuple[int, int | None]:
    """The peak of a run, and the bytes of an arena for it, which is planned where all sizes are known."""
    program = finish(one.folded, Context(Options(), hints=sizes), Dump(None, one.folded.program.name, {}))
    peak = simulate_peak(program, sizes).peak_bytes
    if sizes:
        return peak, None
    return peak, plan_in_arena(program, sizes, lambda node: NOTHING, placeables(program, sizes)).size_bytes


def _constants(pool: Pool) -> list[ConstantRow]:
    tensors = sorted(pool.tensors.items(), key=lambda item: -item[1].numel() * item[1].element_size())
    return [
        ConstantRow(
            name,
            str(TensorMeta(tuple(tensor.shape), tensor.stride(), 0, tensor.dtype, tensor.device, 0)),
            tensor.numel() * tensor.element_size(),
            pool.origins.get(name, ()),
            name in pool.state,
        )
        for name, tensor in tensors
    ]


def _result(rule: OutputRule, program: Program) -> str:
    if isinstance(rule, WithLook):
        return _result(rule.of, program) if isinstance(rule.of, FromSlot | FromView) else "a number"
    if isinstance(rule, FromSlot):
        output = program.outputs[rule.slot]
        return _described(output.meta) if isinstance(output, Value) else str(output)
    if isinstance(rule, FromInput):
        return f"{program.inputs[rule.input].name} itself"
    if isinstance(rule, FromView):
        base = program.inputs[rule.base] if rule.of_input else program.outputs[rule.base]
        return f"a view of {base.name if isinstance(base, Value) else base}"
    return repr(rule.value) if isinstance(rule, FromConstant) else "a result that is made of others"


def _described(meta: object) -> str:
    return str(meta) if isinstance(meta, TensorMeta) else "a number"
