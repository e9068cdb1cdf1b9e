"""Recording a method for inference: a functional program whose weights are inputs with names.

The method runs once on fakes, with gradients off. Inputs of the program are the arguments that are tensors, in order of
the leaves, and then tensors of the pool. What the recording relied on about sizes is kept as a guard.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from dovetail.analysis.alias_pattern import APART, alias_pattern_of
from dovetail.analysis.infer import MetaInference
from dovetail.capture.exclusive import RECORDING
from dovetail.capture.module_state import KeptWhereRead
from dovetail.capture.recording import Recording
from dovetail.capture.recurrent import recorded_whole
from dovetail.errors import NotFreezable, PythonSideEffect, UnsupportedOutput
from dovetail.frontends.described_call import Call, checked_name
from dovetail.frontends.freezing.call_form import same_tensors
from dovetail.frontends.freezing.examples import Example
from dovetail.frontends.freezing.nesting import Captured, Nesting
from dovetail.frontends.freezing.pool import Pool
from dovetail.frontends.inputs import size_hints
from dovetail.frontends.recorded_call import CallRecorder, SymbolicDims, recorded
from dovetail.frontends.size_guard import SizeGuard
from dovetail.frontends.structure import flatten
from dovetail.ir.calling import CallPlan, FromConstant
from dovetail.ir.draft import Draft, free_name
from dovetail.ir.plan_inputs import inputs_touched, with_inputs, without_gradients
from dovetail.ir.program import Program, Value
from dovetail.ir.signature import Constant, Signature, UserInput
from dovetail.ir.sizes import Number
from dovetail.pipeline.differential import same_bits
from dovetail.torch_compat.sparse import form_of
from dovetail.torch_compat.subclasses import is_wrapper

_CHANGES = (
    "keep what changes from call to call in buffers; if its first call only prepares it, call it once before freezing"
)
_CACHE = re.compile(r"\b(?:Dynamic|Static|EncoderDecoder|Quantized)\w*(?:Cache|Layer)\b")


@dataclass(frozen=True, slots=True)
class Recorded:
    """One way to run a method.

    program: functional. arguments: the leaf behind each of its first inputs. results: how what it returns is put
    together. guard: which sizes it is for. hints: a number for each size symbol. lasting: names of tensors of the pool
    that it writes or hands out. written: leaves that it writes. infer: describes new nodes. same: pairs of leaves that
    are one tensor.
    """

    program: Program
    plan: CallPlan
    arguments: tuple[int, ...]
    results: Nesting
    guard: SizeGuard
    hints: Mapping[str, Number]
    lasting: frozenset[str]
    written: frozenset[int]
    infer: MetaInference
    same: tuple[tuple[int, int], ...]

    def called(self, name: str) -> Recorded:
        """The same with another name for the program."""
        return replace(self, program=replace(self.program, name=name))


class MethodRecorder:
    """Records one method of a model, for example arguments of several sizes."""

    def __init__(self, target: Callable[..., Any], method: str) -> None:
        self._target = target
        self._method = method

    def record(self, pool: Pool, example: Example, leaves: Sequence[Any], dims: SymbolicDims | None = None) -> Recorded:
        """Record for the call of an example, with these leaves. dims: which of their sizes are symbols.

        Raises: DovetailError when the method cannot be recorded, or not be frozen.
        """
        with RECORDING, torch.no_grad(), recorded_whole():
            order = example.order()
            described = self._described(*example.call(leaves))
            given_dims = None if dims is None else lambda place: dims(order[place])
            try:
                described, recorder, recording = recorded(
                    self._target, described, None, dims=given_dims, unknown_sizes=dims is None, watches=False
                )
            except (PythonSideEffect, UnsupportedOutput) as error:
                self._refuse_cache(error, leaves)
                if isinstance(error.__cause__, KeptWhereRead):
                    error.offer("if it is a table that the first call makes, call the model once before it is frozen")
                raise
            self._put_back(recorder, recording, recorder.inputs_of(described), given_dims)
            self._refuse_wrappers(described)
            inputs = [described.everything[source] for source in recorder.sources]
            if recording.left_modes:
                raise PythonSideEffect(what=f"left what {next(iter(recording.left_modes))} sets changed")
            self._refuse_sharing(recording, inputs)
            names = self._held_names(pool, described, recorder.sources, recording)
            one = self._recorded(recording, recorder, len(described.tensors), names)
            arguments = tuple(order[leaf] for leaf in one.arguments)
            written = frozenset(order[leaf] for leaf in one.written)
            return replace(one, arguments=arguments, written=written, same=same_tensors(leaves))

    def _put_back(
        self, recorder: CallRecorder, recording: Recording, inputs: Sequence[Any], dims: SymbolicDims | None
    ) -> None:
        """Let Python's objects be as they were, and refuse a method whose second call would be another program.

        Raises: NotFreezable.
        """
        first, spec = recorder.changed, recorder.output_spec
        if not first:
            return
        try:
            again = recorder.record(inputs, dims=dims, unknown_sizes=dims is None)
            if not (spec == recorder.output_spec and _is_same(recording, again)):
                reason = f"its next call would be another program, because its code changes {first[0].label}"
                raise NotFreezable(what=self._method, reason=reason, hint=_CHANGES)
        finally:
            recorder.put_back()
            recorder.changed = first
            recorder.put_back()

    def _refuse_cache(self, error: PythonSideEffect | UnsupportedOutput, leaves: Sequence[Any]) -> None:
        """Say so where what cannot be recorded is the key-value cache of a model of transformers."""
        given = [type(leaf).__name__ for leaf in leaves if type(leaf).__module__ == "transformers.cache_utils"]
        found = given or _CACHE.findall(str(error.facts.get("what")))
        if found:
            hint = "call it with use_cache=False; dovetail.freeze_generation makes a program with its cache inside"
            reason = f"it keeps keys and values in a {found[0]}, an object of transformers"
            raise NotFreezable(what=self._method, reason=reason, hint=hint) from error

    def _described(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
        leaves, spec = flatten((tuple(args), dict(kwargs)))
        detached = {id(item): item.detach() for item in leaves if isinstance(item, torch.Tensor)}  # one stays one
        leaves = [detached.get(id(item), item) for item in leaves]
        described = Call.of(self._target, leaves, spec, has_matrices=False)  # they are constants, by their parts
        self._refuse_wrappers(described)
        return described

    def _refuse_wrappers(self, described: Call) -> None:
        for place, tensor in enumerate(described.everything):
            name = checked_name(described.slots, place, tensor)
            if isinstance(tensor, torch.Tensor) and is_wrapper(tensor):
                reason = f"{name} is a {type(tensor).__name__}, which wraps other tensors"
                hint = "compile it with torch.compile or dovetail.compile"
                if form_of(tensor) is not None:
                    reason, hint = f"{name} is a sparse matrix", f"let the model hold the matrix; or {hint}"
                raise NotFreezable(what=self._method, reason=reason, hint=hint)

    def _refuse_sharing(self, recording: Recording, inputs: Sequence[Any]) -> None:
        """The program must be right for any arguments that share no memory: other sharing is not looked for."""
        names = [s.declared.name for s in recording.stand_ins]
        arguments = [*inputs, *recording.constants.values()]
        alias_pattern = alias_pattern_of(arguments, recording.accesses(), names, wants_gradient=False)
        if alias_pattern != APART:
            what = alias_pattern.groups and [names[member.argument] for member in alias_pattern.groups[0].members]
            reason = f"it writes memory that several of its tensors share ({', '.join(what or names[:1])})"
            hint = "give each its own memory, or write each through one tensor only"
            if alias_pattern.views and not alias_pattern.groups:
                reason = f"it asks whether {names[min(alias_pattern.views)]} is a view, and it is one"
                hint = "pass a copy of it (`.clone()`)"
            raise NotFreezable(what=self._method, reason=reason, hint=hint)

    def _held_names(self, pool: Pool, described: Call, sources: Sequence[int], recording: Recording) -> dict[int, str]:
        """The name in the pool of each input of the program that is none of the call, by its number."""
        slots = described.slots
        names = {
            number: pool.name_of(described.everything[source], slots[source].name)
            for number, source in enumerate(sources)
            if source < len(slots)
        }
        pool.note_slots(slots)
        for number, (name, tensor) in enumerate(recording.forward_constants, start=len(sources)):
            names[number] = pool.name_of(tensor, name)
        return names

    def _recorded(self, recording: Recording, recorder: CallRecorder, slots: int, names: Mapping[int, str]) -> Recorded:
        plan = without_gradients(recording.outputs.plan)
        if plan.extras or plan.packs:
            hint = "pass tensors that are not views of each other"
            raise NotFreezable(what=self._method, reason="its inputs are views of one another", hint=hint)
        functional = recording.programs(self._method, tuple(None for _ in plan.differentiable)).functional
        count = len(recording.outputs.values)
        signature = Signature(functional.signature.inputs, functional.signature.outputs[:count])
        program = replace(functional, outputs=functional.outputs[:count], signature=signature)
        arguments = [k for k in range(len(recorder.sources)) if k not in names]
        touched = inputs_touched(program, plan)
        program, plan = with_inputs(program, plan, [*arguments, *names])
        program = _renamed(program, len(arguments), list(names.values()))
        declared = program.inputs[: len(arguments)]
        leaves = tuple(recorder.sources[k] - slots for k in arguments)
        return Recorded(
            program=program,
            plan=plan,
            arguments=leaves,
            results=Captured(recorder.output_spec, len(plan.outputs)),
            guard=SizeGuard.of(declared, recording.size_conditions),
            hints=size_hints(recording.specs),
            lasting=frozenset(name for number, name in names.items() if number in touched),
            written=frozenset(recorder.sources[k] - slots for k in arguments if k in touched.written),
            infer=recording.infer,
            same=(),
        )


def _is_same(one: Recording, other: Recording) -> bool:
    """Whether two recordings of a call do the same, with the same constants, and return the same."""
    said = []
    for recording in (one, other):
        plan = recording.outputs.plan
        program = recording.programs("", tuple(None for _ in plan.differentiable)).functional
        results = [rule.value if isinstance(rule, FromConstant) else rule for rule in plan.outputs]
        said.append([str(program), *results, *(tensor for _, tensor in recording.forward_constants)])
    return len(said[0]) == len(said[1]) and all(map(same_bits, *said))


def _renamed(program: Program, arguments: int, names: Sequence[str]) -> Program:
    """The program with these names for the inputs after its arguments, and their roles."""
    draft, taken = Draft(program), set(names)
    held = set(program.inputs[arguments:])
    for value, name in zip(program.inputs[arguments:], names, strict=True):
        draft.substitute(value, Value(name, value.meta))
    for value in program.values():
        if value not in held:
            name = free_name(value.name, taken)
            taken.add(name)
            draft.substitute(value, Value(name, value.meta))
    for node in program.nodes:
        draft.take(node)
    roles = [UserInput(k) if k < arguments else Constant(names[k - arguments]) for k in range(len(program.inputs))]
    return replace(draft.finish(), signature=Signature(tuple(roles), program.signature.outputs))
