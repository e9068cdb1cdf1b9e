"""What a step leaves in Python objects: numbers that its program writes back, and changes no program can repeat."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from dovetail.capture.step_recording import StepRecording
from dovetail.errors import DovetailError, StateChangedOtherwise
from dovetail.frontends.step.hook_tables import HookTable
from dovetail.frontends.step.number_spots import NumberSpot
from dovetail.frontends.step.places import MISSING, Path, Place
from dovetail.frontends.step.world import Change, World
from dovetail.ir.program import Origin
from dovetail.ir.step_plan import PlainResult
from dovetail.reach.values import is_same
from dovetail.torch_compat.traced_numbers import is_traced

DRAW, PASS = "draw outside the step", "pass the drawn numbers"
_NUMBERS = (bool, int, float)
_SCALER_STATES = "_per_optimizer_states"  # emptied by every update


class NumbersToLift(Exception):
    """The step changes Python numbers that were taken for constants. paths: of their spots in the world."""

    def __init__(self, paths: frozenset[Path]) -> None:
        super().__init__(paths)
        self.paths = paths


class MoreIsRead(Exception):
    """The step reads what it did not read before: its world is larger."""


class StateToMake(Exception):
    """The step makes what it keeps for later calls. error: what is to be said if it does so again and again."""

    def __init__(self, error: DovetailError) -> None:
        super().__init__()
        self.error = error


class LeftBehind:
    """What a step that was recorded has left in its world. spots: of the numbers that are inputs of the program."""

    def __init__(self, world: World, spots: Sequence[NumberSpot]) -> None:
        """Look at a world whose code has just run on fakes."""
        self._world = world
        self._numbers = spots

    def numbers(self, recording: StepRecording) -> Iterator[tuple[NumberSpot, int]]:
        """The spots that the step leaves other numbers in, each with the number of the value that it leaves.

        Raises: NumbersToLift, StateToMake; StateChangedOtherwise for changes that no program can make.
        """
        known = {spot.key: spot for spot in self._numbers}
        lift: set[Path] = set()
        for spot in self._numbers:
            now = spot.read()
            if now is not spot.shown:
                if not (is_traced(now) or type(now) in _NUMBERS):
                    raise self._refused(Change(spot.place, spot.label, spot.shown, now))
                self._writable(spot.place)
                yield spot, recording.leave(now)
        made: dict[str, DovetailError] = {label: _hooked(label, line) for label, line in recording.hooked.items()}
        for change in self._world.changes():
            place = change.place
            if (place is not None and (id(place.container), place.key) in known) or self._is_harmless(change):
                continue
            if place is not None and _is_plain(change.old) and (_is_plain(change.new) or is_traced(change.new)):
                if type(change.old) in (int, float):
                    lift.add(place.path)
                else:
                    new = change.new if is_traced(change.new) else PlainResult(change.new)
                    yield self._writable(place), recording.leave(new)
            elif (change.old is MISSING and place is not None and place.kind == "dict") or (
                change.old is None or (place is not None and isinstance(place.holder, HookTable))
            ):
                made[change.label] = self._refused(change)
            else:
                raise self._refused(change)
        if made:
            raise StateToMake(next(iter(made.values())))
        if lift:
            raise NumbersToLift(frozenset(lift))

    def _refused(self, change: Change) -> StateChangedOtherwise:
        """What to say of a change that no program can make."""
        line = self._world.line_of(change)
        if change.is_draw:
            return StateChangedOtherwise(
                what=f"draws from {_random_name(change)}",
                why="the program would keep the numbers drawn while the step was captured",
                hint=f"draw with torch (torch.rand, ...), whose draws are part of the program; or {DRAW}, "
                "and pass the drawn numbers",
                origin=line,
            )
        binds = isinstance(change.new, torch.Tensor) or isinstance(change.old, torch.Tensor)
        return refused_change(change.label, binds=binds, line=line)

    def _writable(self, place: Place) -> NumberSpot:
        """The spot of a number that the step changes. Raises: StateChangedOtherwise where nothing can be put."""
        spot = NumberSpot.at(place)
        try:
            spot.write(spot.read())
        except (TypeError, AttributeError, LookupError) as error:
            raise self._refused(Change(place, place.label, MISSING, MISSING)) from error
        return spot

    def _is_harmless(self, change: Change) -> bool:
        """Whether a change is one that a library makes for itself, and that is none once the step is over."""
        if any(change.place is not None and change.place.container is s.__dict__ for _, s in self._world.schedulers):
            return True  # their calls are noted; what was put there is taken away
        if change.place is not None and _holds_the_same(change.old, change.new):
            return True
        is_empty = isinstance(change.new, dict) and not change.new and isinstance(change.old, dict)
        owners = {id(scaler.__dict__) for _, scaler in self._world.scalers}
        if change.place is not None and id(change.place.container) in owners:
            return is_empty and change.place.key == _SCALER_STATES
        return any(change.label.startswith(f"{name}.{_SCALER_STATES}[") for name, _ in self._world.scalers)


def refused_change(label: str, *, binds: bool = False, line: Origin | None = None) -> StateChangedOtherwise:
    """What to say of something that a step changes in Python. binds: it puts another tensor there."""
    return StateChangedOtherwise(
        what=f"binds {label} to another tensor" if binds else f"changes {label}",
        why="a program writes tensors in place and sets numbers; it does not repeat other Python code",
        hint="write it in place (x.copy_(new)), return it, or do it in a function marked with dovetail.host_call",
        origin=line,
    )


def _hooked(label: str, line: Origin | None) -> StateChangedOtherwise:
    return StateChangedOtherwise(
        what=f"registers a hook of {label} and leaves it there",
        why="eager mode would add one more hook in each call, and all of them would run",
        hint="register it once, before the step; or remove it in the step (handle.remove())",
        origin=line,
    )


def _random_name(change: Change) -> str:
    names = {id(random): "Python's module random", id(np.random): "numpy.random"}
    return names.get(id(change.item), change.label)


def _holds_the_same(old: Any, new: Any, depth: int = 8) -> bool:
    """Whether a container was replaced by another one of Python's own that holds the same, no deeper than `depth`."""
    if is_same(old, new):
        return True
    if type(old) is not type(new) or type(old) not in (dict, list, tuple, set) or len(old) != len(new) or not depth:
        return False
    if type(old) is set:
        return set(map(id, old)) == set(map(id, new))
    pairs = zip(old.values(), new.values(), strict=True) if type(old) is dict else zip(old, new, strict=True)
    is_keyed_alike = type(old) is not dict or all(map(is_same, old, new))
    return is_keyed_alike and all(_holds_the_same(a, b, depth - 1) for a, b in pairs)


def _is_plain(value: Any) -> bool:
    return type(value) in (bool, int, float, str, bytes, complex, type(None))
