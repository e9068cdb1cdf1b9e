"""Recording one kind of call of a target, on fakes of its arguments and of what its modules hold.

A `CallRecorder` knows where each input of a recording comes from and what the results are put together as. It holds no
tensor of the call that it was made for: it is kept as long as programs for that kind of call are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from types import CodeType
from typing import Any, TypeAlias

import torch

from dovetail.analysis.alias_pattern import APART, AliasPattern
from dovetail.capture.exclusive import RECORDING
from dovetail.capture.inputs import InputSpec
from dovetail.capture.module_state import TensorSlot, replaced_tensors
from dovetail.capture.origins import module_names
from dovetail.capture.places import UnknownPlaces
from dovetail.capture.python_effects import refuse_tensors_left
from dovetail.capture.recording import Recording
from dovetail.errors import DataDependentControlFlow, DoubleBackwardUnsupported, PythonSideEffect, UnsupportedTensor
from dovetail.execute.second_order import HINT
from dovetail.frontends.call_kind import Call, checked_name
from dovetail.frontends.inputs import specs_with_parts
from dovetail.frontends.structure import Structure, changes, flatten, unflatten
from dovetail.ir.signature import UserInput
from dovetail.reach.contents import identified
from dovetail.reach.guard import ReadGuards
from dovetail.reach.stand_ins import StandIns
from dovetail.reach.values import attributes_of
from dovetail.reach.watcher import Watcher
from dovetail.torch_compat.decompositions import Decompositions
from dovetail.torch_compat.fakes import fake_of, new_fake_mode, symbolic_fake_of
from dovetail.torch_compat.subclasses import is_wrapper
from dovetail.torch_compat.symbols import new_shape_env

SymbolicDims: TypeAlias = "Callable[[int], Sequence[int] | None]"
"""Which sizes of an argument, by its place among the leaves, become symbols; None: each that is above 1."""


def all_dims(place: int) -> None:
    """Every size above 1 of every argument."""


class CallRecorder:
    """Records one kind of call, for inputs that share memory in one way or another.

    sources: for each input of a recording, its place among the tensors of the modules and the leaves of the arguments.
    reads: whether all that the code read, while it was recorded, is as it was.
    """

    def __init__(
        self, target: Callable[..., Any], described: Call, taken_apart: Decompositions | None, *, watches: bool = True
    ) -> None:
        """Look at a call. watches: what the code reads while it is recorded is noted in `reads`, or refused.

        Raises: UnsupportedTensor when the target reads a gradient that one of its tensors holds.
        """
        everything, slots = described.everything, described.reach.slots
        for place in described.held_gradients():
            name = f"the gradient (`.grad`) of {checked_name(slots, place, everything[place])}"
            raise UnsupportedTensor(name=name, kind="read by the function", hint="pass it as a separate argument")
        self._target = target
        self._taken_apart = taken_apart
        self.reads = ReadGuards()
        self._watches = watches
        self._reach, self._spec = described.reach, described.spec
        self.sources = tuple(described.distinct_tensors())
        place_of = {id(everything[source]): place for place, source in enumerate(self.sources)}
        self._leaf_places = [place_of[id(x)] if isinstance(x, torch.Tensor) else None for x in described.leaves]
        self._slot_places = [place_of[id(tensor)] for tensor in described.tensors]
        self._arguments = [None if isinstance(item, torch.Tensor) else item for item in described.leaves]
        self._output_spec: Structure | None = None
        self._codes: dict[CodeType, dict[str, Any]] = {}

    @property
    def output_spec(self) -> Structure:
        """How the results are put together. Known once something was recorded."""
        assert self._output_spec is not None, "nothing was recorded"
        return self._output_spec

    def record(
        self,
        inputs: Sequence[Any],
        arrangement: AliasPattern = APART,
        constants: Sequence[torch.Tensor] = (),
        *,
        dims: SymbolicDims | None = None,
        unknown_sizes: bool = False,
    ) -> Recording:
        """Record for these inputs, in the order of `sources`.

        dims: which of their sizes become symbols; none by default. unknown_sizes: sizes that depend on data may.
        """
        mode = new_fake_mode(new_shape_env() if dims or unknown_sizes else None)
        own = inputs[: len(self.sources)]
        specs = [self._input_spec(i, tensor, mode, dims) for i, tensor in zip(self.sources, own, strict=True)]
        specs = specs_with_parts(own, specs, lambda part: fake_of(mode, part))
        recording = Recording(mode, specs, self._around, arrangement, constants, self._taken_apart)
        with UnknownPlaces() if unknown_sizes else nullcontext():
            recording.run_forward(lambda *_: self._call([s.seen for s in recording.stand_ins]))
        return recording

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        """Run the target in eager mode with these inputs. Raises: DoubleBackwardUnsupported when it has changed."""
        if not self.reads.holds():
            reason = f"a Python value that it reads has changed since: {self.reads.why()}"
            raise DoubleBackwardUnsupported(reason=reason, hint=HINT)
        slots = self._reach.slots
        with RECORDING, replaced_tensors(slots, [inputs[place] for place in self._slot_places]):
            return self._call(inputs)

    def _call(self, inputs: Sequence[Any]) -> list[Any]:
        pairs = zip(self._arguments, self._leaf_places, strict=True)
        shown = [item if place is None else inputs[place] for item, place in pairs]
        args, kwargs = unflatten(shown, self._spec)
        results, self._output_spec = flatten(self._target(*args, **kwargs), results=True)
        if changes((args, kwargs), shown, self._spec):
            raise PythonSideEffect(what="changed a container among its arguments")
        return results

    @contextmanager
    def _around(self, recording: Recording) -> Iterator[None]:
        shown = [recording.stand_ins[place].seen for place in self._slot_places]
        written = dict[Callable[[], Any], Any]()  # what a user has written on tensors that modules hold
        for slot, stand_in in zip(self._reach.slots, shown, strict=True):
            if held := attributes_of(slot.read()):
                written[partial(_attributes_in, slot)] = held
                for name, value in held.items():
                    attributes_of(stand_in).setdefault(name, value)
        with (
            replaced_tensors(self._reach.slots, shown),
            module_names(recording.origins, self._reach.state.modules),
            self._watched(written, shown),
        ):
            yield

    @contextmanager
    def _watched(self, written: Mapping[Callable[[], Any], Any], stand_ins: Sequence[Any]) -> Iterator[None]:
        """While active, what the code reads is noted."""
        numbers = StandIns()
        watcher = Watcher(refuses=self._watches, stand_ins=numbers)
        roots = [self._target, *(part for argument in self._arguments for part in identified(argument))]
        try:
            with watcher.watched(roots, written, self._codes):
                yield
            if numbers.has_given and numbers.asks_types:  # it may have seen that a number is no plain one
                raise DataDependentControlFlow(operator="int(tensor), where code asks for the types of numbers")
            refuse_tensors_left(watcher.changes(), stand_ins)
        except BaseException:
            for change in watcher.changes():
                change.undo()
            raise
        if watcher.reads is not None:
            self._codes |= watcher.reads.codes
        if self._watches:
            self.reads.add(watcher.guard())

    def _input_spec(self, index: int, tensor: torch.Tensor, mode: Any, dims: SymbolicDims | None) -> InputSpec:
        slots = self._reach.slots
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


def _attributes_in(slot: TensorSlot) -> dict[str, Any]:
    """The attributes that a user has given to the tensor that a module holds."""
    return attributes_of(slot.read())
