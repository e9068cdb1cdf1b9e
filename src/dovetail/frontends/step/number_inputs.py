"""Which Python numbers of a step's world a program reads in each call."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from dovetail.frontends.step.drawn_values import Draw
from dovetail.frontends.step.number_spots import NumberSpot
from dovetail.frontends.step.places import Path
from dovetail.frontends.step.world import World


def number_inputs(
    world: World, lifted: frozenset[Path], guarded: frozenset[Path], name_for: Callable[[str], str]
) -> tuple[list[NumberSpot], set[Path]]:
    """The spots, and those of them that are hyperparameters of optimizers.

    lifted: spots that are inputs where they hold numbers; hyperparameters are as well, but for `guarded` ones.
    """
    groups = groups_of(optimizer for _, optimizer in world.optimizers)
    found, hyperparameters = [], set[Path]()
    for place in world.places:
        spot = NumberSpot.at(place)
        kind = type(place.read())
        if not spot.can_be_put:
            continue
        if id(spot.container) in groups and kind is float and place.path not in guarded:
            hyperparameters.add(place.path)
        elif place.path not in lifted or kind not in (int, float):
            continue
        spot.name = name_for(place.label)
        found.append(spot)
    return found, hyperparameters


def groups_of(optimizers: Iterable[Any]) -> set[int]:
    """The groups of optimizers, by identity."""
    return {id(group) for optimizer in optimizers for group in optimizer.param_groups}


def sources_of_numbers(
    numbers: Iterable[int], spots: Sequence[NumberSpot], leaf_of: Mapping[int, int], draws: Sequence[Draw]
) -> list[int | Path | Draw]:
    """Where numbers of a program come from: leaves of the arguments, spots, draws; they are numbered in that order."""
    first = len(spots) + len(leaf_of)
    return [leaf_of[n] if n in leaf_of else spots[n].path if n < len(spots) else draws[n - first] for n in numbers]


def number_label(number: int, spots: Sequence[NumberSpot], leaves: Collection[int]) -> str:
    """What a user would call a number that is an input. leaves: of the arguments, that are inputs."""
    if number < len(spots):
        return spots[number].label
    late = number - len(spots)
    return f"argument {sorted(leaves)[late]}" if late < len(leaves) else f"drawn number {late - len(leaves)}"


def changing(
    numbers: Sequence[int], spots: Sequence[NumberSpot], leaf_of: Mapping[int, int], hyperparameters: Collection[Path]
) -> list[int]:
    """Those of a program's numbers that differ from call to call, by their place among them."""
    moving = {n for n, spot in enumerate(spots) if spot.path not in hyperparameters}
    return [place for place, n in enumerate(numbers) if n in leaf_of or n in moving]
