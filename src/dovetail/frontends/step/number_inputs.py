"""Which Python numbers of a step's world a program reads in each call."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

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
