"""Whether a call is one that a program was recorded for: its arguments, the tensors of modules, modes, Python state."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import torch

from dovetail.capture.ambient_modes import SameModes, ambient_modes
from dovetail.capture.module_state import TensorSlot
from dovetail.frontends.arguments import Arguments
from dovetail.frontends.described_call import Call
from dovetail.frontends.lifted_numbers import ChangedNumbers, NumberGuard
from dovetail.frontends.size_guard import SizeGuard
from dovetail.frontends.structure import Structure
from dovetail.frontends.tensor_kind import difference, kind_of
from dovetail.ir.sizes import Number, Scalar
from dovetail.reach.contents import value_key
from dovetail.reach.guards import PythonGuards
from dovetail.reach.levels import picker
from dovetail.torch_compat.guards import SameTensors, may_be_asked
from dovetail.torch_compat.subclasses import is_wrapper

QuickInputs: TypeAlias = Callable[[tuple[Any, ...], Mapping[str, Any]], "Sequence[Any] | None"]
"""The inputs for a call of these arguments, by place and by name; None where somebody else has to tell."""


class CallGuard:
    """The guard of one program of a function.

    Cost of a check, in a tight loop: 2 us, and 0.1 us for each tensor; what the code reads besides is `reads`.
    """

    def __init__(
        self,
        call: Call,
        sources: Sequence[int],
        reads: PythonGuards,
        without_gradient: Collection[int],
        sizes: SizeGuard | None = None,
        numbers: NumberGuard | None = None,
        asked: Collection[int] = (),
        unread: Collection[int] = (),
    ) -> None:
        """Remember a call.

        sources: places of the inputs. without_gradient: inputs whose `.grad` the code has read. sizes: of the inputs,
        where they may be others. numbers: inputs after those. asked: arguments that code asked for attributes by name.
        unread: leaves that code has not read.
        """
        leaves = [place for place, leaf in enumerate(call.leaves) if isinstance(leaf, torch.Tensor)]
        tensors = [*(call.leaves[place] for place in leaves), *call.tensors]
        number = {id(x): n for n, x in reversed(list(enumerate(tensors)))}
        everything = call.everything
        self.reads = reads
        self._numbers = numbers
        lifted = () if numbers is None else numbers.lifted.leaves
        self._arguments = Arguments.like(call.leaves, call.structure, lifted, asked, unread)
        self._modes = ambient_modes()
        self._are_modes = SameModes(self._modes)
        self._tensor_leaves = picker(leaves)
        self._labels = [*(f"argument {place}" for place in leaves), *(slot.name for slot in call.slots)]
        self._held = _Held(call.slots)
        self._inputs = picker([number[id(everything[source])] for source in sources])
        self._firsts = [number[id(x)] for x in tensors]
        self._has_twins = len(number) < len(tensors)
        self._is_fast = sizes is None and not any(map(is_wrapper, tensors))
        self._same = SameTensors(tensors) if self._is_fast and tensors else None
        self._flags = [(n, x.is_leaf) for n, x in enumerate(tensors) if _may_be_leaf_or_not(x)]
        self._kinds = [kind_of(x, has_sizes=sizes is None) for x in tensors]
        self._without_gradient = without_gradient
        self._sizes = sizes
        self._ids = list(map(id, tensors))
        self._also_read = reads.tensors.intersection(self._ids)
        self._surely_are = None if self._same is None or self._flags else self._same.surely_are

    def rely_on(self, facts: Sequence[Scalar]) -> None:
        """Take these for all that the program relies on of its sizes, where they may be others."""
        if self._sizes is not None:
            self._sizes = replace(self._sizes, facts=tuple(facts))

    def inputs(self, leaves: Sequence[Any], structure: Structure) -> list[Any] | None:
        """The inputs of the program for a call, None when the call is not for it."""
        if not self._arguments.are(leaves, structure) or not self._are_modes():
            return None
        tensors = [*self._tensor_leaves(leaves), *self._held.now()]
        surely = self._surely_are
        are_apart = len(set(map(id, tensors))) == len(tensors)
        is_sure = surely is not None and are_apart and may_be_asked(tensors) and surely(*tensors)
        if (not is_sure and not self._are_alike(tensors)) or self._are_read(tensors):
            return None
        inputs = list(self._inputs(tensors))
        if self._sizes is not None and not self._sizes.holds(inputs):
            return None
        for number in self._without_gradient:
            if inputs[number].is_leaf and inputs[number].grad is not None:
                return None
        if not self.reads.holds():
            return None
        if self._numbers is None:
            return inputs
        numbers = self._numbers.inputs(leaves, self._symbols(inputs))
        return None if numbers is None else [*inputs, *numbers]

    def quick_inputs(self, count: int, names: tuple[str, ...]) -> QuickInputs | None:
        """What gives the inputs for most calls of the same kind, in half the time; None for a call of which `inputs`
        has to tell. There is none where the program takes more than tensors apart from each other.

        count, names: of the arguments by place, and by name, none of which is a container.
        """
        expected = self._arguments
        if self._surely_are is None or expected.attributes or self._without_gradient:
            return None
        numbers, lifted, also_read = self._numbers, expected.lifted, self._also_read
        total, plain, modes, pick_leaves = len(self._ids), expected.plain, self._are_modes, self._tensor_leaves
        held, are, reads, pick = self._held.now, self._surely_are, self.reads, self._inputs
        holds = reads.holds
        places = list(pick(range(total)))
        is_in_order, has_held = places == list(range(total)), bool(self._held)

        def inputs(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Sequence[Any] | None:
            if len(args) != count or (tuple(kwargs) != names if kwargs else names) or not modes.surely_are():
                return None
            leaves = (*args, *kwargs.values()) if kwargs else args
            tensors: Sequence[Any] = leaves
            if plain or lifted:
                for index, key in plain:
                    if value_key(leaves[index]) != key:
                        return None
                for index, kind in lifted:
                    if type(leaves[index]) is not kind:
                        return None
                tensors = pick_leaves(leaves)
            if has_held:
                tensors = (*tensors, *held())
            ids, known = set(map(id, tensors)), reads.tensors
            if len(ids) != total or not (known.isdisjoint(ids) or known & ids <= also_read):
                return None
            if not may_be_asked(tensors) or not are(*tensors) or not holds():
                return None
            found = tensors if is_in_order else pick(tensors)
            if numbers is None:
                return found
            more = numbers.inputs(leaves, {})
            return None if more is None else [*found, *more]

        return inputs

    @property
    def structure(self) -> Structure:
        """Of the arguments."""
        return self._arguments.structure

    @property
    def is_alive(self) -> bool:
        """Whether a call can be for the program."""
        return self.reads.is_alive

    @property
    def fact_count(self) -> int:
        """How much is known of the numbers that are inputs."""
        return 0 if self._numbers is None else len(self._numbers.facts)

    def _symbols(self, inputs: Sequence[Any]) -> Mapping[str, Number]:
        return {} if self._sizes is None else self._sizes.sizes(inputs) or {}

    def replaced_objects(self, leaves: Sequence[Any], structure: Structure) -> list[Any]:
        """Arguments that are other objects than the program is for, of the same classes."""
        return list(self._arguments.replaced_objects(leaves)) if structure == self._arguments.structure else []

    def changed_numbers(self, leaves: Sequence[Any], structure: Structure) -> ChangedNumbers:
        """What are other numbers in a call than the program is for."""
        arguments, slots = self._arguments, self.reads.changed_numbers()
        changed = arguments.changed_numbers(leaves) if structure == arguments.structure else frozenset[int]()
        is_for_one = self._numbers is not None and arguments.are(leaves, structure)
        if is_for_one and self._numbers is not None:
            inputs = self._inputs([*self._tensor_leaves(leaves), *self._held.now()])
            sizes = {} if self._sizes is None else self._sizes.sizes(inputs)
            is_for_one = sizes is not None and self._numbers.is_for_one(leaves, sizes)
        return ChangedNumbers(changed, slots, is_for_one)

    def why(self, leaves: Sequence[Any], structure: Structure) -> str:
        """Why a call is not for the program."""
        told = self._arguments.difference(leaves, structure)
        if told:
            return told
        if ambient_modes() != self._modes:
            return f"the modes of torch changed: {self._modes} -> {ambient_modes()}"
        tensors = [*self._tensor_leaves(leaves), *self._held.now()]
        for label, known, tensor in zip(self._labels, self._kinds, tensors, strict=True):
            told = difference(known, kind_of(tensor, has_sizes=self._sizes is None), label)
            if told:
                return told
        if not self._has_pattern(list(map(id, tensors))) or self._are_read(tensors):
            return "which tensors are the same object changed"
        inputs = self._inputs(tensors)
        if self._sizes is not None and not self._sizes.holds(inputs):
            return self._sizes.reason(inputs, self._inputs(self._labels))
        if self._numbers is not None and (told := self._numbers.difference(leaves, self._symbols(inputs))):
            return told
        return self.reads.why() or "a tensor has a gradient that had none"

    def _are_alike(self, tensors: Sequence[Any]) -> bool:
        """Whether these are tensors of the kinds that are expected, and the same ones are one."""
        ids = list(map(id, tensors))
        if ids != self._ids:
            if not all(isinstance(tensor, torch.Tensor) for tensor in tensors) or not self._has_pattern(ids):
                return False
            self._ids = ids
        try:
            if not self._is_fast:
                has_sizes = self._sizes is None
                return [kind_of(tensor, has_sizes=has_sizes) for tensor in tensors] == self._kinds
            if self._same is not None and not self._same.are(tensors):
                return False
        except RuntimeError:  # it has no strides, or no shape yet
            return False
        return all(tensors[number].is_leaf is is_leaf for number, is_leaf in self._flags)

    def _are_read(self, tensors: Sequence[Any]) -> bool:
        """Whether some are tensors that the code has found elsewhere, where those of the recorded call were not."""
        known = self.reads.tensors
        return bool(known) and not known.intersection(map(id, tensors)) <= self._also_read

    def _has_pattern(self, ids: Sequence[int]) -> bool:
        if not self._has_twins:
            return len(set(ids)) == len(ids)
        first: dict[int, int] = {}
        return [first.setdefault(key, place) for place, key in enumerate(ids)] == self._firsts


class _Held:
    """The tensors of modules, read by built-in iterators."""

    def __init__(self, slots: Sequence[TensorSlot]) -> None:
        tables = list({(id(slot.module), slot.table): slot for slot in slots}.values())
        number = {(id(slot.module), slot.table): n for n, slot in enumerate(tables)}
        self._modules = [slot.module for slot in tables]
        self._tables = [slot.table for slot in tables]
        self._pick = picker([number[id(slot.module), slot.table] for slot in slots])
        self._keys = [slot.key for slot in slots]

    def __bool__(self) -> bool:
        return bool(self._modules)

    def now(self) -> list[Any]:
        """What the modules hold in these places; None where there is nothing any more."""
        if not self._modules:
            return []
        tables = list(map(dict.get, map(_contents, self._modules), self._tables))
        return list(map(dict.get, self._pick(tables), self._keys))


_contents: Callable[[torch.nn.Module], Any] = vars


def _may_be_leaf_or_not(tensor: torch.Tensor) -> bool:
    return tensor.requires_grad and not isinstance(tensor, torch.nn.Parameter)
