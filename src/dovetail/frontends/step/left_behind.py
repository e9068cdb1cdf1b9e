"""What a step leaves in Python objects: numbers that its program writes back, and changes no program can repeat."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from dovetail.capture.step_recorder import StepRecorder
from dovetail.capture.step_recording import StepRecording
from dovetail.errors import DovetailError, StateChangedOtherwise
from dovetail.frontends.step.attempts import ContainersWritten, NumbersToLift, StateToMake, TensorsToKeep
from dovetail.frontends.step.containers import Path, Slot
from dovetail.frontends.step.hook_tables import HookTable
from dovetail.frontends.step.kept import NotMadeAgain, Tree, Trees
from dovetail.frontends.step.lifting import Lifting
from dovetail.frontends.step.number_slots import NUMBERS, NumberSlot
from dovetail.frontends.step.reachable_state import ReachableState
from dovetail.frontends.step.slot_changes import (
    Change,
    can_be_bound,
    can_be_removed,
    differs_beyond,
    holds_the_same,
    is_plain,
    is_put,
)
from dovetail.frontends.step.value_walk import OPTIMIZER
from dovetail.ir.calling import FromConstant
from dovetail.ir.program import Origin
from dovetail.reach.contents import MISSING
from dovetail.reach.reads import Reads
from dovetail.reach.values import attributes_of, has_attributes, is_a
from dovetail.torch_compat.traced_numbers import as_plain, is_traced

DRAW, PASS = "draw outside the step", "pass the drawn numbers"
_NUMBERS = (bool, int, float)
_SCALER_STATES = "_per_optimizer_states"  # emptied by every update


@dataclass(slots=True)
class Made:
    """What a step puts where there was nothing, or None. old: what was there. error: what is said where it may not.

    at: how many of the slots that it leaves something in come before.
    """

    slot: Slot
    path: Path
    old: Any
    tree: Tree
    error: DovetailError
    at: int = 0


@contextmanager
def kept_if_used(recorder: StepRecorder, of_graphs: Sequence[Slot]) -> Iterator[None]:
    """While active, slots with tensors of graphs from before are not to be used. Raises: TensorsToKeep if some are."""
    paths = {id(slot.read()): slot.path for slot in of_graphs}
    recorder.of_graphs = {id(slot.read()): slot.label for slot in of_graphs}
    try:
        yield
    except DovetailError as error:
        if recorder.used_of_graphs:
            raise TensorsToKeep(frozenset(paths[item] for item in recorder.used_of_graphs)) from error
        raise


class LeftBehind:
    """What a step that was recorded has left in its reachable state.

    bound: slots in which the step leaves tensors, texts or containers, each with how a run makes them. filled:
    containers that it leaves larger or smaller, each with how a run makes what they hold. made: what it puts where
    there was nothing. put: attributes that every run sets, by the identity of their `__dict__`. To be
    set: is_drawn, whether what was drawn from a generator is drawn by runs as well; write_only, paths of such
    containers.
    """

    def __init__(
        self,
        reachable: ReachableState,
        slots: Sequence[NumberSlot],
        kept: Collection[Path],
        overwritten: Collection[tuple[int, str]],
        shown: Lifting,
    ) -> None:
        """Look at a reachable state whose code has just run on fakes.

        kept: slots of tensors that may be others in each call. overwritten: attributes that were set before they were
        read, by the identity of their `__dict__`. shown: by earlier calls.
        """
        self._reachable = reachable
        self._numbers = slots
        self._kept = kept
        self._overwritten = overwritten
        self._also_read, self._turned, self._plain = shown.read, shown.turned, shown.plain
        self.is_drawn: Callable[[Any], bool] = lambda _: False
        self.write_only: Sequence[Path] = ()
        self.filled: list[tuple[Path, Tree]] = []
        self.bound: list[tuple[Path, Tree]] = []
        self.made: list[Made] = []
        self._bound_slots: dict[Path, Slot] = {}
        self.put: set[tuple[int, Any]] = set()
        self._to_make: list[Change] = []
        self._decided: list[Change] = []

    def numbers(self, recording: StepRecording, trees: Trees) -> Iterator[tuple[NumberSlot, int]]:
        """The slots that the step leaves other numbers in, each with the number of the value that it leaves.

        Raises: NumbersToLift, StateToMake; StateChangedOtherwise for changes that no program can make.
        """
        lift, keep = set[Path](), set[Path]()
        lifted = {number_slot.path for number_slot in self._numbers}
        made: dict[str, DovetailError] = {label: _hooked(label, line) for label, line in recording.hooked.items()}
        changes = self._reachable.changes()
        resized = self._resized(changes)
        gone = {(id(x.slot.item), x.slot.key) for x in changes if x.slot is not None and x.new is MISSING}
        known = {x.key for x in self._numbers if id(x.slot.container) not in resized} - gone - self._reshaped(changes)
        yield from self._of_inputs(recording, trees, known)
        filled = {id(self._refill(change, trees)) for change in resized.values()}
        for change in changes:
            slot = change.slot
            if change.is_draw and self.is_drawn(change.item):
                continue
            is_filled = id(change.item if slot is None else slot.item) in filled
            is_done = is_filled or (slot is not None and (id(slot.item), slot.key) in known)
            if is_done or self._is_harmless(change):
                continue
            if slot is not None and (id(slot.item), slot.key) in self._overwritten:
                self._bind(change, trees)
                continue
            if slot is not None and is_plain(change.old) and (is_plain(change.new) or is_traced(change.new)):
                if type(change.old) in NUMBERS and slot.path not in self._plain:
                    lift.add(slot.path)
                elif self._is_turned_first(change, slot):
                    self._to_make.append(change)
                else:
                    new = change.new if is_traced(change.new) else FromConstant(change.new)
                    yield self._writable(slot), recording.leave(new)
            elif slot is not None and can_be_bound(change):
                self._bind(change, trees)
                found = list(self._tensors_in(change.old, slot.path))
                keep.update(path for path in found if path not in self._kept)
                known_ones = lifted.union(self._plain)
                lift.update(path for path in self._numbers_in(change.old, slot.path) if path not in known_ones)
            elif (change.old is MISSING and slot is not None and slot.kind == "dict") or (
                change.old is None or (slot is not None and isinstance(slot.container, HookTable))
            ):
                self._to_make.append(change)
            else:
                raise self._refused(change)
        if made:
            raise StateToMake(next(iter(made.values())))
        inside = self._reachable.opened([path for path, _ in (*self.bound, *self.filled)]).tensors()
        keep.update(slot.path for slot in inside if slot.path not in self._kept)
        if keep:
            raise TensorsToKeep(frozenset(keep))
        if lift:
            raise NumbersToLift(frozenset(lift))

    def make(self, trees: Trees) -> None:
        """What was put where there was nothing is made by runs. Raises: StateToMake where that cannot be."""
        if self._to_make:  # later calls find all of it
            paths = {change.slot.path for change in self._decided if change.slot is not None}
            self.bound = [(path, tree) for path, tree in self.bound if path not in paths]
            self._to_make += self._decided
        for change in self._to_make:
            slot, error = change.slot, self._refused(change)
            if slot is None or slot.kind != "dict" or isinstance(slot.container, HookTable):
                raise StateToMake(error)
            try:
                tree = trees.of(change.new)
            except (NotMadeAgain, DovetailError):
                raise StateToMake(error) from None
            self.made.append(Made(slot, self._reachable.path_of(slot), change.old, tree, error))
        self._bind_what_is_alike(trees)
        self._put_in_order()

    def _put_in_order(self) -> None:
        """What is new in an object or a dictionary comes there in the order in which the step has put it there."""
        places: dict[int, list[int]] = {}
        for place, (path, _) in enumerate(self.bound):
            slot = self._bound_slots.get(path)
            if slot is not None and slot.kind == "dict":
                places.setdefault(id(slot.container), []).append(place)
        made: dict[int, list[Made]] = {}
        for item in self.made:
            made.setdefault(id(item.slot.container), []).append(item)
        for number, found in places.items():
            slots = [self._bound_slots[self.bound[place][0]] for place in found]
            rank = {id(key): n for n, key in enumerate(slots[0].container.now()[0])}
            ranked = sorted(zip((rank.get(id(slot.key), -1) for slot in slots), found, strict=True))
            entries = [self.bound[place] for _, place in ranked]
            for place, entry in zip(found, entries, strict=True):
                self.bound[place] = entry
            for item in made.get(number, ()):
                before = sum(other < rank.get(id(item.slot.key), -1) for other, _ in ranked)
                item.at = found[before - 1] + 1 if before else 0

    def _bind_what_is_alike(self, trees: Trees) -> None:
        """The step has set some slots to what was there, or to the like of it. In later calls it may be something else,
        or which object it is counts.
        """
        for table, name in self._overwritten:
            slot = self._reachable.slot_in(table, name)
            now = MISSING if slot is None else attributes_of(slot.container.owner).get(name, MISSING)
            if slot is not None and now is MISSING and is_a(slot.container.owner, (dict, list)):
                self.put.add((table, name))  # an entry is what its class makes of it; what may hide it is looked at
            if slot is not None and now is not MISSING and (table, name) not in self.put:
                self._bind(Change(slot, slot.label, now, now), trees)
        for change in self._reachable.changes():
            if change.slot is not None and can_be_bound(change) and holds_the_same(change.old, change.new):
                is_shared = any(map(trees.hands_on, (change.old, change.new)))
                is_elsewhere = len(self._reachable.holding(change.old)) > 1
                if is_shared or is_elsewhere or change.slot.path in self.write_only:
                    self._bind(change, trees)

    def _is_turned_first(self, change: Change, slot: Slot) -> bool:
        """Whether a flag of an optimizer is turned, or something is decided that was open (None), for the first time: a
        program would be for this call only.
        """
        is_flag = type(change.old) is bool and type(change.new) is bool and slot.container.rank == OPTIMIZER
        is_decided = change.old is None and is_plain(change.new) and slot.kind == "dict"
        return (is_flag or is_decided) and slot.path not in self._turned

    def _reshaped(self, changes: Sequence[Change]) -> set[tuple[int, Any]]:
        """Where tuples with inputs among their parts were replaced by such that differ in more than these."""
        inputs: dict[tuple[int, Any], set[tuple[int, ...]]] = {}
        for number_slot in self._numbers:
            if number_slot.items:
                inputs.setdefault(number_slot.key, set()).add(number_slot.items)
        slots = [(change, (id(change.slot.item), change.slot.key)) for change in changes if change.slot is not None]
        return {key for change, key in slots if key in inputs and differs_beyond(inputs[key], change.old, change.new)}

    def _of_inputs(
        self, recording: StepRecording, trees: Trees, known: Collection[tuple[int, Any]]
    ) -> Iterator[tuple[NumberSlot, int]]:
        """The slots of inputs that the step leaves something else in. known: those that are not left as a whole."""
        for number_slot in self._numbers:
            if number_slot.key not in known:
                continue
            now = number_slot.read()
            if now is number_slot.shown:
                continue
            if is_traced(now) or type(now) in _NUMBERS:
                self._writable(number_slot.slot)
                yield number_slot, recording.leave(now)
            else:
                self._bind(Change(number_slot.slot, number_slot.label, number_slot.shown, now), trees)

    def misses(self, overwritten: Collection[tuple[int, str]]) -> bool:
        """Whether more attributes were set before they were read than was known when this was made."""
        return not set(overwritten) <= set(self._overwritten)

    def find_write_only(self) -> None:
        """Raises: ContainersWritten for containers that the step puts something into, and may not read."""
        changes = [x for x in self._reachable.changes() if is_put(x) and not self._is_harmless(x)]
        found = {x.container.path for x in changes if x.container is not None}
        if not found <= set(self._also_read):
            raise ContainersWritten(frozenset(found.difference(self._also_read)))

    def _bind(self, change: Change, trees: Trees) -> None:
        """The step leaves something in a slot that a run can leave there as well. Raises: StateChangedOtherwise."""
        slot = change.slot
        assert slot is not None, "it is a slot"
        if change.new is MISSING:
            if not can_be_removed(slot):
                raise self._refused(change)
            self.put.add(NumberSlot.at(slot).key)
            self.bound.append((slot.path, FromConstant(MISSING)))
            return
        self._writable(slot)
        self._bound_slots[slot.path] = slot
        try:
            self.bound.append((slot.path, trees.of(change.new)))
        except NotMadeAgain:
            raise self._refused(change) from None
        if self._is_turned_first(change, slot):
            self._decided.append(change)

    def _resized(self, changes: Sequence[Change]) -> dict[int, Change]:
        """Containers that the step reads, and that hold more or less than before, each with such a change."""
        found: dict[int, Change] = {}
        for change in changes:
            container = change.container
            is_other = change.slot is None or change.old is MISSING or change.new is MISSING
            if container is None or container.path not in self._also_read or id(container) in found:
                continue
            if is_other and is_put(change) and not self._is_harmless(change):
                found[id(container)] = change
        return found

    def _refill(self, change: Change, trees: Trees) -> Any:
        """Runs leave the same as the step in a container that has changed, which is the answer. Raises: StateToMake."""
        container = change.container
        assert container is not None, "it is a container's"
        keys, values = container.now()
        held: Any = dict(zip(map(as_plain, keys), values, strict=True)) if container.kind == "dict" else values
        try:
            self.filled.append((container.path, trees.of(held)))
        except NotMadeAgain:
            error = self._refused(change)
            # later calls find a new entry, until the dictionary is cleared
            if container.kind == "dict" and change.old is MISSING:
                raise StateToMake(error) from None
            raise error from None
        return container.item

    def _tensors_in(self, value: Any, path: Path) -> Iterator[Path]:
        """Paths of the tensors that a value is, or that are in a tuple."""
        if isinstance(value, torch.Tensor):
            yield path
        elif is_a(value, tuple):
            for index, part in enumerate(value):
                yield from self._tensors_in(part, (*path, index))

    def _numbers_in(self, value: Any, path: Path) -> Iterator[Path]:
        """Paths of the numbers in a tuple; a size counts as a whole."""
        if is_a(value, tuple) and not is_a(value, torch.Size):
            for index, part in enumerate(value):
                if type(part) in NUMBERS:
                    yield (*path, index)
                yield from self._numbers_in(part, (*path, index))

    def _refused(self, change: Change) -> StateChangedOtherwise:
        """What to say of a change that no program can make."""
        line = self._reachable.line_of(change)
        if change.is_draw:
            return StateChangedOtherwise(
                what=f"draws from {_random_name(change)}",
                why="the program would keep the numbers drawn while the step was captured",
                hint=f"draw with torch (torch.rand, ...), whose draws are part of the program; or {DRAW}, "
                "and pass the drawn numbers",
                origin=line,
            )
        return refused_change(change.label, binds=isinstance(change.new, torch.Tensor), line=line)

    def _writable(self, slot: Slot) -> NumberSlot:
        """The slot of a number that the step changes. Raises: StateChangedOtherwise where nothing can be put."""
        number_slot = NumberSlot.at(slot)
        try:
            number_slot.write(number_slot.read())
        except (TypeError, AttributeError, LookupError) as error:
            raise self._refused(Change(slot, slot.label, MISSING, MISSING)) from error
        self.put.add(number_slot.key)
        return number_slot

    def _is_harmless(self, change: Change) -> bool:
        """Whether a change is one that a library makes for itself, and that is none once the step is over."""
        if any(change.slot is not None and change.slot.item is s.__dict__ for _, s in self._reachable.schedulers):
            return True  # their calls are noted; what was put there is taken away
        if change.slot is not None and holds_the_same(change.old, change.new):
            return True
        is_empty = isinstance(change.new, dict) and not change.new and isinstance(change.old, dict)
        owners = {id(scaler.__dict__) for _, scaler in self._reachable.scalers}
        if change.slot is not None and id(change.slot.item) in owners:
            return is_empty and change.slot.key == _SCALER_STATES
        return any(change.label.startswith(f"{name}.{_SCALER_STATES}[") for name, _ in self._reachable.scalers)


def overwritten(reads: Reads | None, reachable: ReachableState) -> frozenset[tuple[int, str]]:
    """Attributes of objects of a reachable state that the step set before it read them, by the identity of their
    `__dict__`.
    """
    if reads is None:
        return frozenset()
    owners = [(reads.owners[key], name) for key, name in reads.overwritten if key in reads.owners]
    tables = [(attributes_of(owner), name) for owner, name in owners if has_attributes(type(owner))]
    return frozenset((id(table), name) for table, name in tables if reachable.looks_into(table))


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
