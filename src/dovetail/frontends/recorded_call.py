"""Recording one kind of call of a target, on fakes of its arguments and of what its modules hold.

A `CallRecorder` knows where each input of a recording comes from and what the results are put together as. It holds no
tensor of the call that it was made for: it is kept as long as programs for that kind of call are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from types import CodeType
from typing import Any, TypeAlias

import torch

from dovetail.analysis.alias_pattern import APART, AliasPattern
from dovetail.capture.exclusive import RECORDING
from dovetail.capture.inputs import InputSpec
from dovetail.capture.module_state import TensorSlot, replaced_tensors
from dovetail.capture.number_symbols import NumberFact, NumberSymbols
from dovetail.capture.origins import module_names
from dovetail.capture.places import followed_places
from dovetail.capture.python_effects import (
    holds_traced,
    refuse_attributes_left,
    refuse_changes_of_backward,
    refuse_numbers_left,
    refuse_tensors_left,
)
from dovetail.capture.python_objects import PythonObjects
from dovetail.capture.recording import Recording
from dovetail.errors import (
    DataDependentControlFlow,
    DoubleBackwardUnsupported,
    PythonSideEffect,
)
from dovetail.execute.second_order import HINT
from dovetail.frontends.argument_objects import ArgumentObjects
from dovetail.frontends.described_call import Call, checked_name
from dovetail.frontends.gradient_use import GradientUse
from dovetail.frontends.held_modules import Named, modules_read
from dovetail.frontends.inputs import specs_with_parts
from dovetail.frontends.lifted_numbers import PLAIN_NUMBERS, LiftedNumbers
from dovetail.frontends.structure import Structure, flatten, keys_in
from dovetail.ir.program import Phase
from dovetail.ir.signature import SizeInput, UserInput
from dovetail.reach.changes import ReadChange
from dovetail.reach.contents import identified
from dovetail.reach.guards import PythonGuards
from dovetail.reach.read_slots import slots_put
from dovetail.reach.reads import Reads
from dovetail.reach.remembered import MakesMemory, Memories
from dovetail.reach.stand_ins import StandIns
from dovetail.reach.values import attributes_of
from dovetail.reach.watcher import Watcher
from dovetail.torch_compat.decompositions import Decompositions
from dovetail.torch_compat.fakes import fake_of, new_fake_mode, symbolic_fake_of
from dovetail.torch_compat.modes import unnoticed_mode
from dovetail.torch_compat.subclasses import is_wrapper
from dovetail.torch_compat.symbols import new_shape_env

SymbolicDims: TypeAlias = "Callable[[int], Sequence[int] | None]"
"""Which sizes of an argument, by its place among the leaves, become symbols; None: each that is above 1."""


def all_dims(place: int) -> None:
    """Every size above 1 of every argument."""


class NumberSeen(Exception):
    """Code may have seen that a number is a traced one, or has kept it: it has to get plain ones."""


class CallRecorder:
    """Records one kind of call, for inputs that share memory in one way or another.

    sources: for each tensor among the inputs of a recording, its place in the call (see `Call`). numbers: the
    inputs after those. facts: what the code was told of these numbers. leaves_memories, to be set: whether to stop
    where a function would remember what it makes.
    reads: whether all that the code read, while it was recorded, is as it was. gradients_read: inputs whose `.grad` the
    code has read. asked: arguments that code asked for attributes by name. more_modules: by name, that the call was not
    described with, though the code takes their tensors. changed: what the code has changed of Python's objects.
    objects: among the arguments.
    """

    def __init__(
        self,
        target: Callable[..., Any],
        described: Call,
        taken_apart: Decompositions | None,
        *,
        watches: bool = True,
        lifted: LiftedNumbers = PLAIN_NUMBERS,
    ) -> None:
        """Look at a call. watches: what the code reads while it is recorded is noted in `reads`, or refused.

        Otherwise only what moves on as code reads it is refused: iterators, and random generators outside torch.
        lifted: numbers that are inputs. Raises: UnsupportedTensor, UnsupportedDevice.
        """
        everything = described.everything
        for place, item in enumerate(everything):
            checked_name(described.slots, place, item)
        self._target, self._taken_apart, self._watches = target, taken_apart, watches
        self.reads, self.gradients_read = PythonGuards(), set[int]()
        self._modules, self._slots, self._spec = described.modules, described.slots, described.structure
        self.sources = tuple(described.distinct_tensors())
        place_of = {id(everything[source]): place for place, source in enumerate(self.sources)}
        self._leaf_places = [place_of[id(x)] if isinstance(x, torch.Tensor) else None for x in described.leaves]
        self.numbers, self.facts = lifted, dict[str, NumberFact]()
        for place, leaf in enumerate(lifted.leaves, len(self.sources)):
            self._leaf_places[leaf] = place
        self._slot_places = [place_of[id(tensor)] for tensor in described.tensors]
        self._arguments = [None if isinstance(item, torch.Tensor) else item for item in described.leaves]
        self._output_spec: Structure | None = None
        self._codes: dict[CodeType, dict[str, Any]] = {}
        self._with_gradient: frozenset[int] = frozenset()
        self.asked: set[int] = set()
        self._given: dict[int, dict[str, Any]] = {}
        self.more_modules: list[Named] = []
        self.changed: list[ReadChange] = []
        self.leaves_memories = False
        self.objects = ArgumentObjects(self._spec, described.state)

    def inputs_of(self, call: Call) -> list[Any]:
        """What a recording takes in a call of this kind."""
        return [*(call.everything[source] for source in self.sources), *self.numbers.read(call.leaves)]

    @property
    def output_spec(self) -> Structure:
        """How the results are put together. Known once something was recorded."""
        assert self._output_spec is not None, "nothing was recorded"
        return self._output_spec

    def record(
        self,
        inputs: Sequence[Any],
        alias_pattern: AliasPattern = APART,
        constants: Sequence[torch.Tensor] = (),
        *,
        dims: SymbolicDims | None = None,
        unknown_sizes: bool = False,
    ) -> Recording:
        """Record for these inputs, in the order of `sources` and `numbers`.

        dims: which of their sizes become symbols; none by default. unknown_sizes: sizes that depend on data may.
        Raises: DovetailError.
        """
        self._with_gradient = frozenset(n for n, x in enumerate(inputs) if _has_gradient(x))
        are_sizes = self.numbers.are_sizes
        mode = new_fake_mode(new_shape_env() if dims or unknown_sizes or are_sizes else None)
        names, self.objects.given = self.numbers.names, inputs
        own = inputs[: len(self.sources) + len(names)]
        self._given = {
            n: dict(attributes_of(inputs[n])) for n in self._leaf_places if n is not None and n < len(self.sources)
        }
        has_numbers = bool(self.numbers) or mode.shape_env is not None
        numbers = NumberSymbols(self.facts, mode, are_sizes) if has_numbers else None
        specs = [self._input_spec(i, tensor, mode, dims) for i, tensor in zip(self.sources, own, strict=False)]
        if numbers is not None:
            pairs = zip(names, own[len(self.sources) :], strict=True)
            specs += [InputSpec(name, SizeInput(name), numbers.declare(name, now)) for name, now in pairs]
        specs = specs_with_parts(own, specs, lambda part: fake_of(mode, part))
        recording = Recording(mode, specs, self._around, alias_pattern, constants, self._taken_apart, numbers)
        places = nullcontext() if mode.shape_env is None else followed_places(recording.note_checks)
        recorder = recording.recorder
        objects = PythonObjects(recording.origins, recorder.views.of_inputs, recorder.has_views)
        with objects, unnoticed_mode(), places:
            recording.run_forward(lambda *_: self._call([s.seen for s in recording.stand_ins]))
        return recording

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        """Run the target in eager mode with these inputs. Raises: DoubleBackwardUnsupported when it has changed."""
        if not self.reads.holds():
            reason = f"a Python value that it reads has changed since: {self.reads.why()}"
            raise DoubleBackwardUnsupported(reason=reason, hint=HINT)
        tensors = [inputs[place] for place in self._slot_places]
        put = self.objects.put(self._shown(inputs))
        with RECORDING, replaced_tensors(self._slots, tensors), self._numbers_put(inputs), put:
            return self._call(inputs)

    def record_again(self, *args: Any, **keywords: Any) -> Recording:
        """The same for a call that is made: what the code has changed is that call's doing."""
        recording = self.record(*args, **keywords)
        self.done()
        return recording

    def done(self) -> None:
        """A call was recorded that is made: what the code has changed stays."""
        self.changed = []

    def put_back(self) -> None:
        """Let Python's objects be as they were before the recording."""
        for change in self.changed:
            change.undo()
        self.changed = []

    @contextmanager
    def _put_back_on_failure(self) -> Iterator[None]:
        self.changed = []
        try:
            yield
        except BaseException:
            self.put_back()
            raise

    def _numbers_put(self, inputs: Sequence[Any]) -> AbstractContextManager[None]:
        """While active, slots hold the numbers among the inputs."""
        first = len(self.sources) + len(self.numbers.leaves)
        return slots_put(self.numbers.slots, inputs[first : first + len(self.numbers.slots)])

    def _shown(self, inputs: Sequence[Any]) -> list[Any]:
        """The leaves of the arguments, with inputs of a recording in their places."""
        pairs = zip(self._arguments, self._leaf_places, strict=True)
        return [item if place is None else inputs[place] for item, place in pairs]

    def _call(self, inputs: Sequence[Any]) -> list[Any]:
        results, self._output_spec = flatten(self.objects.call(self._target))
        if holds_traced(keys_in(self._output_spec)):
            raise NumberSeen("a size, or a number, is a key of a result")
        if self.objects.are_changed(self._shown(inputs)):
            raise PythonSideEffect(what="changed a container among its arguments")
        return results

    @contextmanager
    def _around(self, recording: Recording) -> Iterator[None]:
        shown = [recording.stand_ins[place].seen for place in self._slot_places]
        own = [attributes_of(slot.read()) for slot in self._slots]  # what a user has written on tensors of modules
        for held, stand_in in zip(own, shown, strict=True):
            for name, value in held.items():
                attributes_of(stand_in).setdefault(name, value)
        for place, held in self._given.items():
            for name, value in held.items():
                attributes_of(recording.stand_ins[place].seen).setdefault(name, value)
        is_backward = recording.recorder.phase is Phase.BACKWARD
        with (
            nullcontext() if is_backward else self._put_back_on_failure(),
            replaced_tensors(self._slots, shown, leaves_attributes=not self._watches),
            self._numbers_put(inputs := [stand_in.seen for stand_in in recording.stand_ins]),
            self.objects.put(self._shown(inputs), recording),
            module_names(recording.origins, self._modules),
            self._watched(own, inputs, shown, is_backward=is_backward),
        ):
            yield
        if self._watches:  # everything is put back by now, but for what the code itself has changed
            self.reads.unrepeated = self.reads.guards[-1].why()

    def _read_attributes(
        self, reads: Reads, own: Sequence[dict[str, Any]], shown: Sequence[Any], stand_ins: Sequence[Any]
    ) -> None:
        """Attributes that code asked tensors for, and that they did not have, count as read."""
        asked = [place in self._given and id(stand_ins[place]) in reads.asked_fakes for place in range(len(stand_ins))]
        self.asked.update([leaf for leaf, place in enumerate(self._leaf_places) if place is not None and asked[place]])
        for slot, held, stand_in in zip(self._slots, own, shown, strict=True):
            if not held and id(stand_in) in reads.asked_fakes:
                reads.answered(partial(_attributes_in, slot), held)

    @contextmanager
    def _watched(
        self, own: Sequence[dict[str, Any]], stand_ins: Sequence[Any], held: Sequence[Any], *, is_backward: bool
    ) -> Iterator[None]:
        """While active, what the code reads is noted.

        own: attributes of the tensors that modules hold. held: the stand-ins that are there now. is_backward: hooks,
        and backwards of the user's, run.
        """
        written: dict[Callable[[], Any], Any] = {
            partial(_attributes_in, slot): known for slot, known in zip(self._slots, own, strict=True) if known
        }
        gradients = GradientUse(stand_ins[: len(self.sources)], self._with_gradient, self._name_of)
        given, memories = StandIns(), Memories()
        watcher = Watcher(refuses_outside=self._watches, on_gradient=gradients, stand_ins=given)
        watcher.on_frame = memories.look if self.leaves_memories else None
        roots = [self._target, *(part for argument in self._arguments for part in identified(argument))]
        try:
            before = [{*attributes_of(stand_in)} for stand_in in stand_ins[: len(self.sources)]]
            with watcher.watched(roots, written, self._codes) as reads:
                memories.met = reads.met
                for slot in self._slots:  # code may put something else there for a while, unseen
                    reads.entry(vars(slot.module)[slot.table], slot.key, type(slot.module).__name__)
                with self.objects.met(reads):
                    yield
                self._read_attributes(reads, own, held, stand_ins)
            self.gradients_read |= gradients.read
            if gradients.refusals or memories.has_stopped:
                raise gradients.refusals[0] if gradients.refusals else MakesMemory
            refuse_attributes_left(reads, stand_ins, before)
            if given.has_given and given.asks_types:  # it may have seen that a number is no plain one
                raise DataDependentControlFlow(operator="int(tensor), where code asks for the types of numbers")
            if self.numbers and given.asks_exact_types:
                raise NumberSeen
            self._find_more_modules(watcher)
            self.objects.look(watcher)
            self._codes |= reads.codes
            changes = watcher.changes()
            self._refuse_left(changes, stand_ins, held)
            if is_backward:
                refuse_changes_of_backward(changes)
        except BaseException:
            for change in watcher.changes():
                change.undo()
            raise
        self.changed += changes
        if self._watches:
            lifted = self.objects.lifted.union(slot.key for slot in self.numbers.slots)
            guard = watcher.guard(others=self.objects.items, lifted=lifted)
            self.objects.look_elsewhere(guard)
            self.reads.add(guard)
        self.objects.forget()

    def _refuse_left(self, changes: Sequence[ReadChange], stand_ins: Sequence[Any], held: Sequence[Any]) -> None:
        """Raises: NumberSeen, PythonSideEffect for what no call would leave in Python objects."""
        refuse_tensors_left(changes, held, self._codes)
        if self.numbers and (self._has_written_number(stand_ins) or any(holds_traced(x.new) for x in changes)):
            raise NumberSeen
        if self._watches:
            refuse_numbers_left(changes)

    def _has_written_number(self, stand_ins: Sequence[Any]) -> bool:
        """Whether code has put something else where a number among the inputs is held."""
        first = len(self.sources) + len(self.numbers.leaves)
        return any(slot.read() is not shown for slot, shown in zip(self.numbers.slots, stand_ins[first:], strict=False))

    def _name_of(self, number: int) -> str:
        """The name of an input of a recording."""
        return checked_name(self._slots, self.sources[number], None)

    def _find_more_modules(self, watcher: Watcher) -> None:
        if watcher.reads is not None:
            known = {id(child) for _, module in self._modules for child in module.modules()}
            self.more_modules = modules_read(
                watcher.reads, lambda module: id(module) in known or watcher.was_made(module)
            )

    def _input_spec(self, index: int, tensor: torch.Tensor, mode: Any, dims: SymbolicDims | None) -> InputSpec:
        slots = self._slots
        position = index - len(slots)
        name = checked_name(slots, index, tensor)
        if is_wrapper(tensor):
            fake = None
        elif dims is None or position < 0:
            fake = fake_of(mode, tensor)
        else:
            fake = symbolic_fake_of(mode, tensor, name, dims(position))
        return InputSpec(
            f"{name}_{index}" if position < 0 else name,
            slots[index].role if position < 0 else UserInput(position),
            fake,
            requires_grad=tensor.requires_grad,
            is_leaf=tensor.is_leaf,
            is_parameter=isinstance(tensor, torch.nn.Parameter),
        )


def recorded(
    target: Callable[..., Any],
    call: Call,
    taken_apart: Decompositions | None,
    *,
    dims: SymbolicDims | None = None,
    unknown_sizes: bool = False,
    watches: bool = True,
    lifted: LiftedNumbers = PLAIN_NUMBERS,
    leaves_memories: bool = False,
) -> tuple[Call, CallRecorder, Recording]:
    """Record a call of a target, and describe it with all modules whose tensors it takes.

    lifted: numbers that are inputs. leaves_memories: see `CallRecorder`. What the code has changed stays until
    `put_back` of the recorder. Raises: DovetailError.
    """
    while True:
        recorder = CallRecorder(target, call, taken_apart, watches=watches, lifted=lifted)
        inputs, recorder.leaves_memories = recorder.inputs_of(call), leaves_memories
        recording = recorder.record(inputs, dims=dims, unknown_sizes=unknown_sizes)
        recorder.leaves_memories = False
        if not recorder.more_modules:
            return call, recorder, recording
        recorder.put_back()
        modules = [*call.modules, *recorder.more_modules]
        call = call.again(target, modules)


def _has_gradient(item: Any) -> bool:
    return isinstance(item, torch.Tensor) and item.is_leaf and item.grad is not None


def _attributes_in(slot: TensorSlot) -> dict[str, Any]:
    """The attributes that a user has given to the tensor that a module holds."""
    return attributes_of(slot.read())
