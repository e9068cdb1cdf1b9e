"""What the program of a step takes: tensors of the reachable state and of the arguments, and Python numbers.

A sparse matrix is there by its parts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import torch

from dovetail.capture.sparse_operands import KnownMatrix
from dovetail.capture.step_tensors import StepTensor
from dovetail.errors import UnsupportedTensor
from dovetail.frontends.step.containers import Path
from dovetail.frontends.step.number_slots import NUMBERS, NumberSlot
from dovetail.frontends.step.reachable_state import ReachableState
from dovetail.frontends.step.tensor_kinds import Source
from dovetail.ir.signature import InputRole, Parameter, StateTensor, UserInput
from dovetail.ir.text import identifier
from dovetail.torch_compat.sparse import form_of, parts_of

_Made = TypeVar("_Made")


class FoundTensors:
    """Attributes: tensors, each with where it comes from in sources; matrices, sparse ones, by their parts."""

    def __init__(self, name: Callable[[str], str]) -> None:
        """name: makes a name of a wish that no other has."""
        self.tensors: list[StepTensor] = []
        self.sources: list[Source] = []
        self.matrices: list[KnownMatrix] = []
        self._name = name
        self._known: set[int] = set()

    def refuse_scripted(self, modules: Iterable[tuple[str, torch.nn.Module]]) -> None:
        """Raises: UnsupportedTensor for one that a module of TorchScript holds, in C, where nothing is exchanged."""
        for title, module in modules:
            if isinstance(module, torch.jit.ScriptModule):
                held = set(map(id, (*module.parameters(), *module.buffers())))
                item = next((x for x in self.tensors if id(x.tensor) in held), None)
                if item is not None:
                    kind = f"a tensor of {title or 'a module'}, which TorchScript compiled"
                    hint = "make the step with the module that it was made from"
                    raise UnsupportedTensor(name=item.label, kind=kind, hint=hint)

    def add_state(self, index: int, tensor: torch.Tensor, label: str) -> None:
        """One that the reachable state holds."""
        role = Parameter(label) if isinstance(tensor, torch.nn.Parameter) else StateTensor(label)
        self._add(tensor, label, label, role, Source("state", index))

    def add_argument(self, index: int, tensor: torch.Tensor, label: str) -> None:
        """One among the arguments. Raises: UnsupportedTensor for a sparse matrix that is known already."""
        if id(tensor) in self._known:
            if form_of(tensor) is not None:
                raise UnsupportedTensor(
                    name=label,
                    kind="a sparse matrix that the step reaches otherwise as well",
                    hint="use it by one name, or pass a clone",
                )
        else:
            self._add(tensor, label, identifier(label), UserInput(index), Source("argument", index))

    def _add(self, tensor: torch.Tensor, label: str, wish: str, role: InputRole, source: Source) -> None:
        form = form_of(tensor)
        self._known.add(id(tensor))
        if form is None:
            self.tensors.append(StepTensor(self._name(wish), label, role, tensor))
            self.sources.append(source)
            return
        parts = parts_of(tensor)
        for name, part in parts.items():
            wanted = f"{label}.{name}"
            self.tensors.append(StepTensor(self._name(f"{wish}_{name}"), wanted, StateTensor(wanted), part))
            self.sources.append(Source(f"{source.kind} matrix", source.index, name, form))
        self.matrices.append(KnownMatrix(label, tensor, form, tuple(parts.values())))


def number_inputs(
    reachable: ReachableState, lifted: frozenset[Path], guarded: frozenset[Path], name_for: Callable[[str], str]
) -> tuple[list[NumberSlot], set[Path]]:
    """The slots, and those of them that are hyperparameters of optimizers.

    lifted: slots that are inputs where they hold numbers; hyperparameters are as well, but for `guarded` ones.
    """
    groups = groups_of(optimizer for _, optimizer in reachable.optimizers)
    found, hyperparameters = [], set[Path]()
    for slot in reachable.slots:
        number_slot = NumberSlot.at(slot)
        kind = type(slot.read())
        if not number_slot.can_be_put:
            continue
        if id(number_slot.item) in groups and kind in (float, np.float64) and slot.path not in guarded:
            hyperparameters.add(slot.path)
        elif slot.path not in lifted or kind not in NUMBERS:
            continue
        number_slot.name = name_for(slot.label)
        found.append(number_slot)
    return found, hyperparameters


def groups_of(optimizers: Iterable[Any]) -> set[int]:
    """The groups of optimizers, by identity."""
    return {id(group) for optimizer in optimizers for group in optimizer.param_groups}


def sources_of_numbers(
    numbers: Iterable[int], slots: Sequence[NumberSlot], leaf_of: Mapping[int, int], made: Sequence[_Made]
) -> list[int | Path | _Made]:
    """Where numbers of a program come from: leaves of the arguments, slots, what is drawn or read later on; they are
    numbered in that order.
    """
    first = len(slots) + len(leaf_of)
    return [leaf_of[n] if n in leaf_of else slots[n].path if n < len(slots) else made[n - first] for n in numbers]


def number_label(number: int, slots: Sequence[NumberSlot], leaves: Collection[int]) -> str:
    """What a user would call a number that is an input. leaves: of the arguments, that are inputs."""
    if number < len(slots):
        return slots[number].label
    late = number - len(slots)
    return f"argument {sorted(leaves)[late]}" if late < len(leaves) else f"drawn or late number {late - len(leaves)}"


def changing(
    numbers: Sequence[int], slots: Sequence[NumberSlot], leaf_of: Mapping[int, int], hyperparameters: Collection[Path]
) -> list[int]:
    """Those of a program's numbers that differ from call to call, by their place among them."""
    moving = {n for n, number_slot in enumerate(slots) if number_slot.path not in hyperparameters}
    return [slot for slot, n in enumerate(numbers) if n in leaf_of or n in moving]
