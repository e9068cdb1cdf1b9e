"""One program of a compiled function, and how it is captured: recorded, compiled, and guarded."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import torch

from dovetail.capture.exclusive import RECORDING
from dovetail.capture.module_state import KeptWhereRead
from dovetail.capture.python_effects import ChangesInBackward
from dovetail.capture.recording import Recording
from dovetail.capture.recording_context import wants_known_sizes
from dovetail.errors import (
    BadOptionValue,
    CaptureFailed,
    DataDependentControlFlow,
    DovetailError,
    PassChangedMeaning,
    PythonSideEffect,
)
from dovetail.execute.changed_words import changed_word_with
from dovetail.frontends.argument_objects import ObjectSeen, TensorsSeen
from dovetail.frontends.call_guard import CallGuard
from dovetail.frontends.described_call import Call
from dovetail.frontends.donation import Donation
from dovetail.frontends.function_variants import Chosen, FunctionRunner, FunctionVariant, QuickCall, Ready
from dovetail.frontends.handed_state import HandedState
from dovetail.frontends.inputs import size_hints
from dovetail.frontends.lifted_numbers import PLAIN_NUMBERS, ChangingNumbers, LiftedNumbers, NumberGuard
from dovetail.frontends.recorded_call import CallRecorder, NumberSeen, all_dims, recorded
from dovetail.frontends.size_guard import SizeGuard
from dovetail.frontends.structure import Classes, Structure, classes_in, flatten_call, is_flat, unflatten
from dovetail.frontends.variant_cache import Variant, VariantCache
from dovetail.ir.sizes import Scalar, SizeExpr
from dovetail.pipeline.alias_graphs import AliasGraphs
from dovetail.pipeline.options import Options, decompositions
from dovetail.reach.remembered import MakesMemory

R = TypeVar("R")

_WHATEVER_SIZES = (TensorsSeen, ObjectSeen)  # why recordings fail, whether sizes are symbols or not


class FunctionCaptures:
    """Finds and captures programs of one function, and keeps in mind what captures have shown."""

    def __init__(
        self, target: Callable[..., Any], cache: VariantCache[FunctionVariant], options: Options, donation: Donation
    ) -> None:
        self._target, self._cache = target, cache
        self._options, self._donation = options, donation
        self._found_modules: list[tuple[str, weakref.ref[torch.nn.Module]]] = []
        self.classes, self._state = Classes(), HandedState()
        self._numbers = ChangingNumbers(may_be_sizes=options.memory_limit is None)
        self._last: FunctionVariant | None = None
        self._quick: QuickCall | None = None
        self._raised: CaptureFailed | None = None  # while the last call that eager mode was left with was recorded
        self._is_refused = False
        self._prepared: tuple[Structure, tuple[object, ...]] | None = None  # left to eager mode; none captured since
        self.is_call = True  # False while captures are for no call: what the code changes is put back

    def ready(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Ready | None:
        """A call's graph, its inputs, how results are put together; None for eager mode. Raises: DovetailError."""
        cache, quick = self._cache, self._quick
        if quick is not None:
            with RECORDING:
                found = quick.ready(args, kwargs)
            if found is not None:
                quick.variant.calls += 1
                cache.fitted(quick.variant)
                return found
        self._raised = None
        if cache.patience.waits():
            return None
        with RECORDING:
            chosen = self._chosen(args, kwargs)
            if chosen is None:
                return None
            variant, graph, taken = chosen
            variant.calls += 1
            cache.fitted(variant)
            if is_flat(args, kwargs, variant.guard.structure):
                self._expect(variant, len(args), tuple(kwargs))
        return graph, taken, variant.runner.output_spec

    def _chosen(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Chosen | None:
        """The program for a call, compiled when it is new, its graph and the inputs; None when no more may be made."""
        cache, undone = self._cache, list[Callable[[], None]]()
        while True:
            leaves, structure = self.flat(args, kwargs)
            found = cache.find(leaves, structure)
            if found is None and (self._open(leaves, structure) or self._hand_in()):
                continue
            try:
                if found is None:
                    cache.counts.misses += 1
                    found = self.added(leaves, structure)
                if found is None:
                    return None
                (variant, inputs), known = found, found[0].guard.fact_count
                chosen = variant.runner.graphs.select(inputs)  # records again where they share memory in a new way
            except DovetailError as error:
                if self._takes_otherwise(error, structure, undone):
                    continue
                if not (self._may_be_prepared(error, leaves, structure) or self._is_left_to_eager_mode(error)):
                    raise
                return None
            if variant.guard.fact_count != known and variant.guard.inputs(leaves, structure) is None:
                continue  # another way of sharing memory has shown more about the numbers
            if chosen is None:
                cache.refuse(lambda: "inputs share memory in a new way")
                return None
            return variant, *chosen

    def _open(self, leaves: list[Any], structure: Structure) -> bool:
        """Take objects apart that are new ones in each call. Whether that is new."""
        replaced = [(v, item) for v in self._cache.variants for item in v.guard.replaced_objects(leaves, structure)]
        opened = {type(item) for _, item in replaced if self.classes.open(type(item))}
        dropped = {id(v): v for v, item in replaced if type(item) in opened}  # no call is for them any more
        for variant in dropped.values():
            self._cache.drop(variant)
        return bool(opened)

    def _hand_in(self) -> bool:
        """Hand tensors in that calls find in the same slots, other ones each time. Whether that is new."""
        if self._donation.wishes:
            return False
        variants = list(self._cache.variants)
        changed = [slot for variant in variants for slot in variant.guard.reads.changed_tensors()]
        is_new = self._state.learn(changed, self.classes.open)
        for variant in variants if is_new else ():  # no call is for it any more
            self._cache.drop(variant)
        return is_new

    def _takes_otherwise(self, error: DovetailError, structure: Structure, undone: list[Callable[[], None]]) -> bool:
        """Take more or less of calls apart, as an error asks for. Whether that is new; else `undone` is done."""
        if self._takes_more(error) or self._takes_less(error, structure, undone):
            return True
        for undo in undone:  # it was not for that
            undo()
        return False

    def _takes_more(self, error: DovetailError) -> bool:
        """Hand in what code has found in slots, if it is an input. Whether that is new."""
        seen = error.__cause__
        return isinstance(seen, TensorsSeen) and self._state.take(seen.slots, self.classes.open)

    def _takes_less(self, error: DovetailError, structure: Structure, undone: list[Callable[[], None]]) -> bool:
        """Take objects apart, or hand tensors in, no more: the code may not do with it. Whether that is new.

        undone: gets what undoes it.
        """
        is_seen = isinstance(error.__cause__, ObjectSeen)
        if closed := self.classes.close(classes_in(structure), dataclasses=is_seen):
            undone.append(partial(self.classes.reopen, closed))
        elif left := self._state.leave():
            undone.append(partial(self._state.hand_in, left))
        else:
            return False
        return True

    def flat(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[list[Any], Structure]:
        """The leaves of a call, and how to put them together."""
        return flatten_call(args, self._state.handed(kwargs), self.classes)

    def _may_be_prepared(self, error: DovetailError, leaves: Sequence[Any], structure: Structure) -> bool:
        """Code that keeps tensors may only do so in the first call of a kind, which is left to eager mode: a table that
        is made once, and looked up from then on.
        """
        if not isinstance(error.__cause__, KeptWhereRead) or self._options.memory_limit is not None:
            return False
        kinds = tuple([(x.shape, x.dtype) if isinstance(x, torch.Tensor) else type(x) for x in leaves])
        if self._prepared == (structure, kinds):
            return False
        self._prepared = structure, kinds
        self._cache.patience.missed()
        return True

    def _is_left_to_eager_mode(self, error: DovetailError) -> bool:
        """Code that raises while it is recorded runs in eager mode, which raises what is to be raised."""
        if not isinstance(error, CaptureFailed) or self._is_refused or wants_known_sizes(error.__cause__):
            return False
        self._raised = error
        return True

    def ran_in_eager_mode(self) -> None:
        """A call that was left to eager mode has raised nothing: where its recording did, the next such call does."""
        if self._raised is not None:
            name = self._cache.name
            self._cache.warn(f"a call of {name} ran in eager mode, and the next one raises this error:\n{self._raised}")
            self._is_refused = True

    def _expect(self, variant: FunctionVariant, count: int, names: tuple[str, ...]) -> None:
        """A program is for a call: where it was the last time as well, be quick to recognise the next one.

        count, names: of the arguments by place, and by name, none of which is a container.
        """
        is_again, self._last = self._last is variant, variant
        if is_again and (self._quick is None or self._quick.variant is not variant):
            inputs = variant.guard.quick_inputs(count, names)
            self._quick = None if inputs is None else QuickCall(variant, inputs)

    def added(self, leaves: list[Any], structure: Structure) -> tuple[FunctionVariant, list[Any]] | None:
        """A new variant with its graph for a call, and its inputs; None when no more may be made."""

        def capture() -> tuple[FunctionVariant, list[Any]] | None:
            self._numbers.learn(v.guard.changed_numbers(leaves, structure) for v in self._cache.variants)
            try:
                made = self._compiled(leaves, structure)
            except (CaptureFailed, PythonSideEffect) as error:
                if not self._is_for_eager_mode(error):
                    raise
                self._cache.patience.missed()
                return None
            self._prepared = None
            return made

        def why() -> str:
            return self._cache.why(lambda variant: variant.guard.why(leaves, structure))

        return self._cache.captured(why, capture)

    def _is_for_eager_mode(self, error: DovetailError) -> bool:
        """Whether a call of which no program can be made runs in eager mode, and says so where all such calls do."""
        if isinstance(error.__cause__, MakesMemory):  # eager mode makes it, and later calls find it
            return True
        if not (isinstance(error.__cause__, ChangesInBackward) and self.is_call and self._options.memory_limit is None):
            return False
        self._cache.warn(f"calls of {self._cache.name} run in eager mode, as the program {error.facts['what']}")
        return True

    def _compiled(self, leaves: list[Any], structure: Structure) -> tuple[FunctionVariant, list[Any]]:
        """A program with its graph for a call, and its inputs in this call. Raises: DovetailError."""
        call = self._described(leaves, structure)
        while True:
            lifted = self._numbers.lifted(leaves)
            try:
                return self._captured(call, lifted)
            except DovetailError as error:
                if not lifted or isinstance(error.__cause__, TensorsSeen | MakesMemory):
                    raise
            self._numbers.refuse(lifted)

    def prepare(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Capture a program for a call that is not made, if there is none. Raises: DovetailError."""

        def prepared(leaves: list[Any], structure: Structure) -> None:
            if self._cache.find(leaves, structure) is None:
                self.added(leaves, structure)

        self.is_call = False
        try:
            self._attempted(args, kwargs, prepared)
        finally:
            self.is_call = True

    def recorded(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Recording, tuple[int, ...]]:
        """A recording of a call, and how often each of its inputs was passed. Raises: DovetailError."""
        return self._attempted(args, kwargs, self._recorded)

    def _attempted(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], attempt: Callable[[list[Any], Structure], R]
    ) -> R:
        """What an attempt gives that takes of a call what the code can do with. Raises: DovetailError."""
        undone = list[Callable[[], None]]()
        with RECORDING:
            while True:
                leaves, structure = self.flat(args, kwargs)
                try:
                    return attempt(leaves, structure)
                except DovetailError as error:
                    if not self._takes_otherwise(error, structure, undone):
                        raise

    def _recorded(self, leaves: list[Any], structure: Structure) -> tuple[Recording, tuple[int, ...]]:
        described, dynamic = self._described(leaves, structure), self._options.dynamic
        call, recorder, variant, inputs = self._capture(described, unknown_sizes=True, dynamic=dynamic)
        recorder.put_back()
        counts = tuple(sum(other is tensor for other in call.everything) for tensor in inputs)
        return variant.runner.graphs.record_for(inputs), counts

    def _captured(self, call: Call, lifted: LiftedNumbers = PLAIN_NUMBERS) -> tuple[FunctionVariant, list[Any]]:
        try:
            return self._of_data(call, lifted)
        except (PythonSideEffect, CaptureFailed) as error:  # the code, or torch, may not do with symbols of sizes
            if not self._options.dynamic or isinstance(error.__cause__, _WHATEVER_SIZES):
                raise
            try:
                return self._of_data(call, lifted, dynamic=False)
            except CaptureFailed as other:
                if isinstance(other.__cause__, (*_WHATEVER_SIZES, NumberSeen, MakesMemory)):
                    raise
                raise error from error.__cause__

    def _of_data(self, call: Call, lifted: LiftedNumbers, *, dynamic: bool = True) -> tuple[FunctionVariant, list[Any]]:
        """With symbols for sizes that depend on data, which costs more to record, where there are such."""
        try:
            return self._capture_and_select(call, lifted, dynamic=dynamic)
        except DataDependentControlFlow as error:
            try:
                return self._capture_and_select(call, lifted, unknown_sizes=True, dynamic=dynamic)
            except (BadOptionValue, PassChangedMeaning):  # an option that does not go with such sizes; a fault of ours
                raise
            except DovetailError as other:
                if isinstance(other.__cause__, TensorsSeen):
                    raise
                raise error from None

    def _described(self, leaves: list[Any], structure: Structure) -> Call:
        found = [(name, module) for name, ref in self._found_modules if (module := ref()) is not None]
        state = None if self._donation.wishes else self._state.slots
        return Call.of(self._target, leaves, structure, found, state=state)

    def _capture_and_select(
        self, call: Call, lifted: LiftedNumbers, *, unknown_sizes: bool = False, dynamic: bool = True
    ) -> tuple[FunctionVariant, list[Any]]:
        known = len(call.modules)
        dynamic = dynamic and self._options.dynamic
        call, recorder, variant, inputs = self._capture(call, unknown_sizes, lifted, dynamic=dynamic)
        is_done = False
        try:
            variant.runner.graphs.select(inputs)
            variant.guard.rely_on(_without(lifted.names, variant.runner.graphs.size_conditions))
            is_done = self.is_call
        finally:
            if is_done:
                recorder.done()
            else:
                recorder.put_back()
        self._found_modules += [(name, weakref.ref(module)) for name, module in call.modules[known:]]
        return variant, inputs

    def _capture(
        self, call: Call, unknown_sizes: bool, lifted: LiftedNumbers = PLAIN_NUMBERS, *, dynamic: bool
    ) -> tuple[Call, CallRecorder, FunctionVariant, list[Any]]:
        """The call, who recorded it, a variant for it, and its inputs.

        lifted: numbers that are inputs. dynamic: sizes are symbols.
        """
        dims, rules = all_dims if dynamic else None, decompositions(self._options)
        call, recorder, recording = recorded(
            *(self._target, call, rules),
            dims=dims,
            unknown_sizes=unknown_sizes,
            lifted=lifted,
            leaves_memories=self.is_call and self._options.memory_limit is None,
        )
        inputs = recorder.inputs_of(call)
        args, kwargs = unflatten(call.leaves, call.structure)
        given = self._donation.places(args, kwargs, call.everything)
        donated = {recorder.sources.index(place): name for place, name in given.items()}
        hints = size_hints(recording.specs)
        again = partial(recorder.record_again, unknown_sizes=unknown_sizes)
        graphs = AliasGraphs(recording, again, self._cache.name, self._options, hints, recorder.run, donated)
        declared = [stand_in.declared for stand_in in recording.stand_ins]
        sizes = SizeGuard.of(declared, _without(lifted.names, recording.size_conditions)) if dynamic else None
        numbers = NumberGuard(lifted, recorder.facts.values()) if lifted else None
        recorder.reads.ask_memory(changed_word_with(self._options.executors))
        asked, unread = recorder.asked, recorder.objects.unread or ()
        guard = CallGuard(
            call, recorder.sources, recorder.reads, recorder.gradients_read, sizes, numbers, asked, unread
        )
        return call, recorder, Variant(guard, FunctionRunner(graphs, recorder.output_spec)), inputs


def _without(names: Collection[str], conditions: Sequence[Scalar]) -> list[Scalar]:
    """The conditions about sizes of tensors alone: those about numbers are facts. names: of numbers."""
    return [x for x in conditions if not isinstance(x, SizeExpr) or set(x.symbols()).isdisjoint(names)]
