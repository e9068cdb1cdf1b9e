"""`dovetail.freeze`: a model as an inference program with its weights inside."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from dovetail.capture.module_state import TensorSlot, tensor_slots
from dovetail.errors import BadOptionValue, NotFreezable
from dovetail.execute.protocol import ExecutorList, RunnableProgram
from dovetail.execute.watch import watch_with
from dovetail.frontends.freezing.examples import Example, examples_of
from dovetail.frontends.freezing.free_recording import record_method
from dovetail.frontends.freezing.freezable import refuse_not_freezable
from dovetail.frontends.freezing.method import FrozenMethod
from dovetail.frontends.freezing.module import FreezesTo, FrozenModule
from dovetail.frontends.freezing.originals import Originals
from dovetail.frontends.freezing.pool import Pool, copy_of
from dovetail.frontends.freezing.record import MethodRecorder, Recorded
from dovetail.frontends.freezing.running import FOR_SPEED, Running
from dovetail.frontends.freezing.timing import time_methods
from dovetail.frontends.freezing.tombstones import Discarded, discard
from dovetail.frontends.freezing.variant import FrozenProgram
from dovetail.frontends.freezing.weights import FILE, MEMORY, Sources
from dovetail.frontends.size_guard import SizeGuard
from dovetail.frontends.targets import as_callable
from dovetail.ir.fixed_sizes import described_with_sizes, with_sizes
from dovetail.ir.program import Program, meta_symbols
from dovetail.ir.signature import Signature
from dovetail.passes.inplace import PlanMemory
from dovetail.pipeline.arena import code_of
from dovetail.pipeline.compile_trace import CompileTrace
from dovetail.pipeline.doors import FREEZE
from dovetail.pipeline.driver import PASS_NAMES, StepRecord
from dovetail.pipeline.dump import FORWARD, Dump
from dovetail.pipeline.executor_list import make_executors
from dovetail.pipeline.freezing import (
    Folded,
    Unfolded,
    chosen_passes,
    finish,
    fold,
    refuse_idle_policy,
    refuse_unchanged,
    simplify,
    within_limit,
)
from dovetail.pipeline.memory_limit import refuse_unknown_sizes, state_bytes
from dovetail.pipeline.options import Options, resolve_options
from dovetail.pipeline.passes import Context
from dovetail.torch_compat.version import ensure_supported_torch

_CHOICES: dict[str, tuple[object, ...]] = {
    "discard_originals": (False, True),
    "keep_sources": (None, MEMORY, FILE),
    "on_stale": ("error", "refresh", "ignore"),
    "on_grad": ("raise", "original"),
    "measure": (False, True),
}


def freeze(  # noqa: PLR0913 (all that a user may say of one program)
    model: torch.nn.Module | torch.export.ExportedProgram,
    example_inputs: Sequence[Any] | Mapping[str, Any] = (),
    *,
    example_kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    discard_originals: bool = False,
    keep_sources: str | None = None,
    passes: str | Sequence[str] = "bitwise",
    on_stale: str = "error",
    on_grad: str = "raise",
    measure: bool = False,
    **options: Any,
) -> FrozenModule:
    """Turn a model into an inference program that contains its weights.

    Args:
        model: left unchanged, unless `discard_originals`. It is frozen in its current mode: call `eval()` first.
        example_inputs: arguments of `forward`, as a tuple or by their names; or, for several methods, a mapping from
            the method's name to a pair (arguments, keyword arguments).
        example_kwargs: more arguments of `forward`, by their names.
        dynamic_shapes: which sizes are symbolic. None: the first one of every input, as far as the model allows (see
            `specialized` of the result); with a `memory_limit`, which is for the example's sizes, none. "static": none.
            A mapping from argument to {dimension: name}, where equal names mean equal sizes (`torch.export.Dim` works,
            too): an error if one cannot vary. For several methods, a mapping from method to such a value.
        discard_originals: move the model's parameters into the frozen program. Using the model then raises. Memory
            never holds more than the model and a second form of one layer.
        keep_sources: "memory" or "file": keep the original weights, for `source_state_dict` and partial
            `swap_weights`.
        passes: "bitwise": those that keep every bit. "fast": those that change rounding, too. "int8", "bf16": these,
            and constant weights are multiplied in fewer bits (`compare_with` of the result says what that costs).
            Or names of passes; see docs/freezing.md.
        on_stale: what a call does after the model's weights have changed: "error", "refresh" (fold again), or
            "ignore": the program holds copies, and does not check.
        on_grad: what a call does if gradients are enabled and an input requires one: "raise", or run the "original".
        measure: time each method next to the model's own with the example's arguments, for about a second, and warn
            (SlowerThanEager) where it takes longer. The model's code runs some ten to fifty times more for that. See
            `timings` of the result.
        options: see `dovetail.pipeline.options`.

    Returns:
        A module that is called like the model, without gradients.

    Raises:
        DovetailError: the model cannot be frozen, or an option is wrong. The model is unchanged.
    """
    ensure_supported_torch()
    settings = _Settings.checked(discard_originals, keep_sources, on_stale, on_grad, measure)
    resolved = resolve_options(options, PASS_NAMES, FREEZE)
    refuse_idle_policy(resolved)
    names = chosen_passes(passes)
    target = as_callable(model)
    if not isinstance(target, torch.nn.Module):
        what = str(getattr(target, "__name__", type(target).__name__))
        raise NotFreezable(what=what, reason="it is not a module", hint="call the function from a module's forward")
    refuse_not_freezable(target)
    with torch.inference_mode(False), torch.no_grad():  # constants are used outside that mode, too
        examples = examples_of(target, example_inputs, FrozenModule, example_kwargs)
        return _Freezing(target, resolved, names, settings, passes).run(examples, dynamic_shapes)


@dataclass(frozen=True, slots=True)
class _Settings:
    discards: bool
    keep_sources: str | None
    on_stale: str
    on_grad: str
    measure: bool

    @staticmethod
    def checked(discards: bool, keep_sources: str | None, on_stale: str, on_grad: str, measure: bool) -> _Settings:
        settings = _Settings(discards, keep_sources, on_stale, on_grad, measure)
        for option, choices in _CHOICES.items():
            value = discards if option == "discard_originals" else getattr(settings, option)
            if not any(type(value) is type(choice) and value == choice for choice in choices):
                expected = " or ".join(map(repr, choices))
                raise BadOptionValue(
                    option=option, value=value, reason="it must be one of the choices", expected=expected
                )
        if discards and on_grad == "original":
            reason = "the original cannot run once its parameters are discarded"
            raise BadOptionValue(option="on_grad", value=on_grad, reason=reason, expected='"raise"')
        if discards and measure:
            reason = "the original cannot run once its parameters are discarded"
            raise BadOptionValue(option="measure", value=measure, reason=reason, expected="False")
        return settings


@dataclass(frozen=True, slots=True)
class _Lowering:
    """A recorded program on its way: after the passes, before folding."""

    recorded: Recorded
    unfolded: Unfolded
    dump: Dump
    reports: Sequence[Any]


class _Freezing:
    """One run of `freeze`."""

    def __init__(
        self, model: torch.nn.Module, options: Options, passes: Sequence[str], settings: _Settings, wish: object
    ) -> None:
        """wish: the passes as they were asked for."""
        self._model = model
        self._wish = wish
        self._passes = passes
        self._settings = settings
        self._compile_trace = options.compile_trace or CompileTrace()
        self._options = replace(options, compile_trace=self._compile_trace)
        self._pool = Pool()
        self._discarded: Discarded | None = None
        self._kept: Sources | None = None
        self._unread: dict[str, torch.Tensor] = {}  # alive until all is done
        self._taken: dict[str, torch.Tensor] = {}  # what is discarded, until it is known that all fits in a limit

    def run(self, examples: Mapping[str, Example], dynamic_shapes: Any) -> FrozenModule:
        """The frozen module. Nothing of the model changes before everything is planned, and nothing if that fails."""
        try:
            return self._run(examples, dynamic_shapes)
        except BaseException as error:
            if self._discarded is not None:
                self._put_back(self._discarded, error)
            raise

    def _run(self, examples: Mapping[str, Example], dynamic_shapes: Any) -> FrozenModule:
        found: dict[str, tuple[tuple[Recorded, ...], tuple[str, ...]]] = {}
        for method, example in examples.items():
            recorder = MethodRecorder(self._model if method == "forward" else getattr(self._model, method), method)
            by_method = len(examples) > 1 and isinstance(dynamic_shapes, Mapping)
            wish = dynamic_shapes.get(method) if by_method else dynamic_shapes
            if wish is None and self._options.memory_limit is not None:
                wish = "static"
            recorded, notes = record_method(recorder, self._pool, example, wish)
            found[method] = tuple(one.called(f"{method}_{k}" if k else method) for k, one in enumerate(recorded)), notes
        everything = [one for recorded, _ in found.values() for one in recorded]
        lasting = self._pool.sharing(name for one in everything for name in one.lasting)
        lowerings = [self._lower(one, lasting) for one in everything]
        refuse_unchanged(self._wish, [report for lowering in lowerings for report in lowering.reports])
        ways = self._ways(found, lowerings, examples)
        lowerings = [lowering for several in ways.values() for lowering in several]
        persistent = frozenset(self._model.state_dict(keep_vars=True))
        originals = self._settle(lasting)
        sources = self._kept = self._sources(persistent)
        folded, record = fold([lowering.unfolded for lowering in lowerings], self._pool.tensors, lasting)
        held = sum(tensor.untyped_storage().nbytes() for tensor in _apart(self._pool.tensors.values()))
        contexts = [self._running_context(lowering, held) for lowering in lowerings]
        pairs = zip(lowerings, folded, contexts, strict=True)
        programs = iter([self._frozen(lowering, one, record, context) for lowering, one, context in pairs])
        ran = tuple([name for name in self._passes if name not in self._options.skip])
        methods = {
            method: FrozenMethod(examples[method].form, tuple(next(programs) for _ in ways[method]), notes, ran)
            for method, (_, notes) in found.items()
        }
        finishers = [partial(_finish, context, one.dump) for one, context in zip(lowerings, contexts, strict=True)]
        running = Running(methods, make_executors(self._options), finishers)
        running.bind(self._pool, release=self._settings.discards)
        running.prepare()
        self._taken = {}
        make = self._model.frozen_as if isinstance(self._model, FreezesTo) else FrozenModule
        frozen = make(
            type(self._model).__name__,
            running,
            self._pool,
            sources=sources,
            originals=originals,
            on_stale=self._settings.on_stale,
            unfrozen=self._model if self._settings.on_grad == "original" else None,
            compile_trace=self._compile_trace,
        )
        if self._settings.measure:
            frozen.timings = time_methods(self._model, frozen, running.methods, examples)
        return frozen

    def _ways(
        self,
        found: Mapping[str, tuple[Sequence[Recorded], object]],
        lowerings: Sequence[_Lowering],
        examples: Mapping[str, Example],
    ) -> dict[str, list[_Lowering]]:
        """The programs of each method: where passes for this machine ask for sizes, one for those of the example before
        one for any.
        """
        every, ways = iter(lowerings), dict[str, list[_Lowering]]()
        for method, (recorded, _) in found.items():
            ways[method] = []
            for lowering in (next(every) for _ in recorded):
                fixed = None if FOR_SPEED.isdisjoint(self._passes) else self._at_example(lowering, examples[method])
                ways[method] += [lowering] if fixed is None else [fixed, lowering]
        return ways

    def _at_example(self, lowering: _Lowering, example: Example) -> _Lowering | None:
        """The same program for the sizes of the example alone; None where it has no others."""
        one, unfolded = lowering.recorded, lowering.unfolded
        sizes = one.guard.sizes([example.leaves[leaf] for leaf in one.arguments])
        if not sizes or not _symbols(one.program) | _symbols(unfolded.program) <= sizes.keys():
            return None
        program = replace(with_sizes(one.program, sizes), name=f"{one.program.name}_of_example")
        unfolded = replace(
            unfolded,
            program=replace(with_sizes(unfolded.program, sizes), name=program.name),
            plan=described_with_sizes(unfolded.plan, sizes),
        )
        guard = SizeGuard.of(program.inputs[: len(one.arguments)], ())
        plan = described_with_sizes(one.plan, sizes)
        dump = Dump(self._options.dump, program.name, {}, self._options.dump_calls, None, self._compile_trace)
        return _Lowering(replace(one, program=program, plan=plan, guard=guard, hints={}), unfolded, dump, ())

    def _lower(self, one: Recorded, lasting: frozenset[str]) -> _Lowering:
        dump = Dump(
            self._options.dump, one.program.name, one.hints, self._options.dump_calls, None, self._compile_trace
        )
        constants = frozenset(value.name for value in one.program.inputs[len(one.arguments) :]) - lasting
        context = Context(self._options, one.hints, constants=constants, infer=one.infer, contents=self._pool.tensors)
        program, asked, reports = simplify(one.program, self._passes, context, dump)
        unfolded = Unfolded(program, one.plan, asked, len(one.arguments))
        return _Lowering(one, unfolded, dump, reports)

    def _running_context(self, lowering: _Lowering, held_bytes: int) -> Context:
        """What is known of a program that runs. held_bytes: of weights."""
        program, count = lowering.recorded.program, len(lowering.recorded.arguments)
        if self._options.memory_limit is not None:
            refuse_unknown_sizes(lowering.unfolded.program, self._options.memory_limit)
        roles = Signature(program.signature.inputs[:count], program.signature.outputs)
        arguments = replace(program, inputs=program.inputs[:count], signature=roles)
        return Context(self._options, lowering.recorded.hints, state_bytes=held_bytes + state_bytes(arguments))

    def _frozen(self, lowering: _Lowering, folded: Folded, record: StepRecord, context: Context) -> FrozenProgram:
        one = lowering.recorded
        lowering.dump.step("fold_constants", folded.program, record)
        folded = within_limit(folded, context, lowering.dump)
        return FrozenProgram(
            folded=folded,
            arguments=one.arguments,
            results=one.results,
            shapes=one.guard,
            written=one.written,
            same=one.same,
            unfolded=partial(_given, lowering.unfolded),
        )

    def _settle(self, lasting: frozenset[str]) -> Originals | None:
        """Take the tensors over from the model."""
        slots = tensor_slots([("", self._model)])
        pool, settings = self._pool, self._settings
        names = {dotted: name for name, dots in pool.origins.items() for dotted in dots}
        placed = {slot.name: slot for slot in slots}
        pool.unused = frozenset(placed) - set(names)
        watched = [dotted for dotted, name in names.items() if name not in lasting]
        others = {dotted: pool.given[names[dotted]] for dotted in watched if dotted not in placed}
        originals = None
        if not settings.discards:
            watch = watch_with(self._options.executors)
            originals = Originals.of(self._model, slots, [d for d in watched if d in placed], others, watch)
        taken = {names[d] for d, slot in placed.items() if d in names and slot.table == "_parameters"}
        keeps = settings.on_stale == "ignore" or settings.discards
        pool.settle(lasting, own=pool.tensors.keys() - (taken if settings.discards else set()) if keeps else ())
        if settings.discards:
            self._discard(slots)
        return originals

    def _discard(self, slots: Sequence[TensorSlot]) -> None:
        hint = "load_state_dict(state_dict, assign=True) puts parameters back, for instance those of the checkpoint"
        if self._settings.keep_sources is not None:
            hint = "load_state_dict(frozen.source_state_dict(), assign=True, strict=False) puts them back"
        self._unread = {slot.name: slot.read() for slot in slots if slot.name in self._pool.unused}
        if self._options.memory_limit is not None:
            self._taken = {slot.name: slot.read() for slot in slots}
        self._discarded = discard(slots, type(self._model).__name__, hint)

    def _put_back(self, discarded: Discarded, error: BaseException) -> None:
        """Give the model its parameters again, as far as there are any: some may have been folded into others."""
        known = {**(self._kept.read() if self._kept is not None else {}), **self._pool.stored()}
        origins = self._pool.origins
        left = {dotted: known[name] for name, dots in origins.items() if name in known for dotted in dots}
        lost = discarded.put_back({**left, **self._taken})
        if lost:
            error.add_note(f"dovetail: discarded and lost before this happened: {', '.join(lost)}")

    def _sources(self, persistent: frozenset[str]) -> Sources:
        """The weights as they are before folding, as far as they are kept. persistent: names that state dicts have."""
        pool, where = self._pool, self._settings.keep_sources
        own = not self._settings.discards  # or the model would change them
        if where is not None:
            tensors = {name: copy_of(t) if own and where == MEMORY else t for name, t in pool.tensors.items()}
            return Sources(tensors, where, is_complete=True)
        kept = {name: copy_of(t) for name, t in pool.tensors.items() if persistent.isdisjoint(pool.origins[name])}
        return Sources(kept, MEMORY, is_complete=False)


def _given(unfolded: Unfolded) -> Unfolded:
    return unfolded


def _symbols(program: Program) -> set[str]:
    return {symbol for value in program.values() for symbol in meta_symbols(value.meta)}


def _apart(tensors: Iterable[torch.Tensor]) -> Iterable[torch.Tensor]:
    """Of tensors that share memory, one; without those of libraries."""
    return {x.untyped_storage().data_ptr(): x for x in tensors if x.layout is torch.strided}.values()


def _finish(context: Context, dump: Dump, folded: Folded, executors: ExecutorList) -> RunnableProgram:
    """What runs. It knows nothing of the model, which it would keep alive."""
    program = finish(folded, replace(context, plans=PlanMemory()), dump)
    return dump.watched(code_of(program, executors, context.options, context.hints), FORWARD)
