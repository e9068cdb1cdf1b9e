"""What a guard compares of all that a step reaches: the spots that its program is bound to, as they were."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from dovetail.capture.ambient_modes import ambient_modes
from dovetail.frontends.step.hook_tables import HookWatch
from dovetail.frontends.step.places import Cell, Fixed, Holder, Named, Path, Unordered
from dovetail.frontends.step.value_walk import SCHEDULER, ValueWalk
from dovetail.reach.contents import MISSING, Snapshot
from dovetail.reach.guarded import FUNCTION_PARTS, Guarded, Table
from dovetail.reach.levels import OfType, TupleOf
from dovetail.reach.values import is_a, slots_of


def bound_slots(walk: ValueWalk, lifted: frozenset[Path], modes: Hashable) -> Guarded:
    """What was reached, as it was when it was walked; what only a scheduler leads to is left out.

    lifted: spots that may hold any value of the type that they hold now. modes: of torch, then.
    """
    return _BoundSlots(walk, lifted).guarded(modes)


class _BoundSlots:
    def __init__(self, walk: ValueWalk, lifted: frozenset[Path]) -> None:
        self._walk = walk
        self._inputs = _inputs(walk, lifted) if lifted else {}
        self._moving = {key for key, spots in walk.spots.items() if lifted and all(x[2].path in lifted for x in spots)}
        self._found = Guarded(Snapshot(), is_bound=True)
        self._numbers: dict[int, int] = {}
        self._own: set[int] = set()

    def guarded(self, modes: Hashable) -> Guarded:
        walk, found = self._walk, self._found
        for item, kind, table, holder in walk.objects:
            if holder.rank != SCHEDULER:
                number = self._numbers[id(item)] = len(found.objects)
                found.objects.append((item, kind))
                if table is not None:
                    found.bound_tables.append((number, table))
                    self._own.add(id(table))
        for holder in walk.holders:
            if not (holder.rank == SCHEDULER or isinstance(holder, Fixed) or id(holder.owner) in self._moving):
                self._add(holder)
        for place, array in walk.arrays:
            if place.holder.rank != SCHEDULER:
                self._add_container(array, place.label)
        hooks = HookWatch([x for key, x in walk.tensors.items() if key not in self._moving], walk.hooks_registered)
        found.asked = {hooks.holds: True, _AreModes(modes): True}
        return found

    def _add(self, holder: Holder) -> None:
        item, values = holder.container, self._values(holder)
        if isinstance(holder, Cell):
            self._found.cells.append((item, holder.variable, values[0] if values else MISSING))
        elif isinstance(holder, Named):
            self._add_named(holder, values)
        elif isinstance(holder, Unordered):
            self._add_container(item, holder.title)
        elif holder.kind == "dict" and holder.read_names is not None:
            table = Table(holder.title, "[{!r}]" if holder.link == "item" else ".{}")
            self._add_read(table, holder, values)
            if id(item) in self._own:  # it may come to hide an attribute of a class
                for name in sorted(frozenset(holder.read_names).difference(holder.keys)):
                    table.add(name, MISSING)
            self._found.dictionaries.append((item, table))
        else:
            self._add_container(item, holder.title, [*holder.keys, *values] if holder.kind == "dict" else values)

    def _add_named(self, holder: Named, values: list[Any]) -> None:
        item = holder.container
        if holder.keys == list(FUNCTION_PARTS):
            self._found.functions.append((item, values))
        elif id(item) in self._numbers:
            number = self._numbers[id(item)]
            descriptors = slots_of(self._found.objects[number][1])
            self._found.descriptors += [
                (number, descriptors[name], value)
                for name, value in zip(holder.keys, values, strict=True)
                if holder.is_read(name)
            ]
        else:
            table = Table(holder.title, ".{}")
            self._add_read(table, holder, values)
            (self._found.class_tables if is_a(item, type) else self._found.dictionaries).append((item, table))

    def _add_read(self, table: Table, holder: Holder, values: Sequence[Any]) -> None:
        for key, value in zip(holder.keys, values, strict=True):
            if holder.is_read(key):
                table.add(key, value)

    def _add_container(self, item: Any, title: str, held: list[Any] | None = None) -> None:
        if held is None:
            self._found.snapshot.take(item)
        else:
            self._found.snapshot.expect(item, held)
        self._found.containers.append((item, title))

    def _values(self, holder: Holder) -> list[Any]:
        """What a container held, inputs of the program apart."""
        inputs = self._inputs.get(id(holder))
        return holder.values if inputs is None else [inputs.get(n, value) for n, value in enumerate(holder.values)]


class _AreModes:
    """Asks whether torch's modes are as they were."""

    __qualname__ = "the modes of torch"

    def __init__(self, modes: Hashable) -> None:
        self._modes = modes

    def __call__(self) -> bool:
        return ambient_modes() == self._modes

    def __repr__(self) -> str:
        return "the modes of torch"


def _inputs(walk: ValueWalk, lifted: frozenset[Path]) -> dict[int, dict[int, Any]]:
    """By container, and by position in it: what stands for a value that is an input of a program, or that has one."""
    found: dict[int, dict[int, Any]] = {}
    for holder in walk.holders:
        for key in holder.keys:
            if holder.path_of(key) not in lifted:
                continue
            outer, inner = holder, key
            while isinstance(outer, Fixed) and outer.parent is not None:
                outer, inner = outer.parent, outer.key
            position = next(n for n, known in enumerate(outer.keys) if known is inner)
            expected = _expected(outer.values[position], outer.path_of(inner), lifted)
            found.setdefault(id(outer), {})[position] = expected
    return found


def _expected(value: Any, path: Path, lifted: frozenset[Path]) -> Any:
    if path in lifted:
        return OfType(type(value))
    if is_a(value, tuple):
        parts = [_expected(part, (*path, n), lifted) for n, part in enumerate(tuple.__iter__(value))]
        return TupleOf(type(value), tuple(parts))
    return value
