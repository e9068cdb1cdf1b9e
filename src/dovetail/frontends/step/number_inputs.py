"""Which Python numbers of a step's reachable state a program reads in each call."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from dovetail.frontends.step.containers import Path
from dovetail.frontends.step.drawn_values import Draw
from dovetail.frontends.step.number_slots import NumberSlot
from dovetail.frontends.step.reachable_state import ReachableState


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
        if id(number_slot.item) in groups and kind is float and slot.path not in guarded:
            hyperparameters.add(slot.path)
        elif slot.path not in lifted or kind not in (int, float):
            continue
        number_slot.name = name_for(slot.label)
        found.append(number_slot)
    return found, hyperparameters


def groups_of(optimizers: Iterable[Any]) -> set[int]:
    """The groups of optimizers, by identity."""
    return {id(group) for optimizer in optimizers for group in optimizer.param_groups}


def sources_of_numbers(
    numbers: Iterable[int], slots: Sequence[NumberSlot], leaf_of: Mapping[int, int], draws: Sequence[Draw]
) -> list[int | Path | Draw]:
    """Where numbers of a program come from: leaves of the arguments, slots, draws; they are numbered in that order."""
    first = len(slots) + len(leaf_of)
    return [leaf_of[n] if n in leaf_of else slots[n].path if n < len(slots) else draws[n - first] for n in numbers]


def number_label(number: int, slots: Sequence[NumberSlot], leaves: Collection[int]) -> str:
    """What a user would call a number that is an input. leaves: of the arguments, that are inputs."""
    if number < len(slots):
        return slots[number].label
    late = number - len(slots)
    return f"argument {sorted(leaves)[late]}" if late < len(leaves) else f"drawn number {late - len(leaves)}"


def changing(
    numbers: Sequence[int], slots: Sequence[NumberSlot], leaf_of: Mapping[int, int], hyperparameters: Collection[Path]
) -> list[int]:
    """Those of a program's numbers that differ from call to call, by their place among them."""
    moving = {n for n, number_slot in enumerate(slots) if number_slot.path not in hyperparameters}
    return [slot for slot, n in enumerate(numbers) if n in leaf_of or n in moving]
