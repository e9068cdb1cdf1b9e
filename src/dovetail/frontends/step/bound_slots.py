"""What a guard compares of all that a step reaches: the slots that its program is bound to, as they were."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial
from typing import Any

from dovetail.capture.ambient_modes import SameModes
from dovetail.frontends.step.containers import Cell, Container, Fixed, Named, Path, Unordered
from dovetail.frontends.step.hook_tables import HookGuard
from dovetail.frontends.step.open_slots import OpenSlots
from dovetail.frontends.step.value_walk import SCHEDULER, ValueWalk
from dovetail.reach.contents import MISSING, Snapshot
from dovetail.reach.expected_values import OfType, TupleOf
from dovetail.reach.guarded import FUNCTION_PARTS, Guarded, Table
from dovetail.reach.values import is_a, slots_of


def bound_slots(walk: ValueWalk, lifted: frozenset[Path], opened: OpenSlots, modes: Hashable) -> Guarded:
    """What was reached, as it was when it was walked; what only a scheduler leads to is left out.

    lifted: slots that may hold any value of the type that they hold now. modes: of torch, then.
    """
    return _BoundSlots(walk, lifted, opened).guarded(modes)


class _BoundSlots:
    def __init__(self, walk: ValueWalk, lifted: frozenset[Path], opened: OpenSlots) -> None:
        self._walk, self._lifted = walk, lifted
        self._inside = opened.inside
        self._inputs = _inputs(walk, lifted, opened) if lifted or opened.slots else {}
        self._moving = {key for key, slots in walk.slots.items() if lifted and all(x[2].path in lifted for x in slots)}
        self._found = Guarded(Snapshot(), is_bound=True)
        self._numbers: dict[int, int] = {}
        self._own: set[int] = set()

    def guarded(self, modes: Hashable) -> Guarded:
        walk, found = self._walk, self._found
        for item, kind, table, container in walk.objects:
            if container.rank != SCHEDULER and id(container) not in self._inside:
                number = self._numbers[id(item)] = len(found.objects)
                found.objects.append((item, kind))
                if table is not None:
                    found.bound_tables.append((number, table))
                    self._own.add(id(table))
        for container in walk.containers:
            is_elsewhere = isinstance(container, Fixed) or id(container) in self._inside
            if not (container.rank == SCHEDULER or is_elsewhere or id(container.owner) in self._moving):
                self._add(container)
        for slot, array in walk.arrays:
            if slot.container.rank != SCHEDULER and not self._is_input(array):
                self._add_container(array, slot.label)
        hooks = HookGuard([x for key, x in walk.tensors.items() if key not in self._moving], walk.hooks_registered)
        partials = [container.item for container in walk.containers if is_a(container.item, partial)]
        found.asked = {hooks.holds: True, SameModes(modes): True, **dict.fromkeys(map(_IsPartial, partials), True)}
        return found

    def _is_input(self, array: Any) -> bool:
        """Whether nothing holds an array but slots that are inputs."""
        return bool(self._lifted) and all(
            container.path_of(key) in self._lifted
            for container in self._walk.containers
            for key, value in zip(container.keys, container.values, strict=True)
            if value is array
        )

    def _add(self, container: Container) -> None:
        item, values = container.item, self._values(container)
        if isinstance(container, Cell):
            self._found.cells.append((item, container.variable, values[0] if values else MISSING))
        elif isinstance(container, Named):
            self._add_named(container, values)
        elif isinstance(container, Unordered):
            self._add_container(item, container.title)
        elif container.kind == "dict" and container.read_names is not None:
            table = Table(container.title, "[{!r}]" if container.link == "item" else ".{}")
            self._add_read(table, container, values)
            if id(item) in self._own:  # it may come to hide an attribute of a class
                for name in sorted(frozenset(container.read_names).difference(container.keys)):
                    table.add(name, MISSING)
            self._found.dictionaries.append((item, table))
        else:
            self._add_container(
                item, container.title, [*container.keys, *values] if container.kind == "dict" else values
            )

    def _add_named(self, container: Named, values: list[Any]) -> None:
        item = container.item
        if container.keys == list(FUNCTION_PARTS):
            self._found.functions.append((item, values))
        elif id(item) in self._numbers:
            number = self._numbers[id(item)]
            descriptors = slots_of(self._found.objects[number][1])
            self._found.descriptors += [
                (number, descriptors[name], value)
                for name, value in zip(container.keys, values, strict=True)
                if container.is_read(name)
            ]
        else:
            table = Table(container.title, ".{}")
            self._add_read(table, container, values)
            (self._found.class_tables if is_a(item, type) else self._found.dictionaries).append((item, table))

    def _add_read(self, table: Table, container: Container, values: Sequence[Any]) -> None:
        for key, value in zip(container.keys, values, strict=True):
            if container.is_read(key):
                table.add(key, value)

    def _add_container(self, item: Any, title: str, held: list[Any] | None = None) -> None:
        if held is None:
            self._found.snapshot.take(item)
        else:
            self._found.snapshot.expect(item, held)
        self._found.containers.append((item, title))

    def _values(self, container: Container) -> list[Any]:
        """What a container held, inputs of the program apart."""
        inputs = self._inputs.get(id(container))
        return (
            container.values if inputs is None else [inputs.get(n, value) for n, value in enumerate(container.values)]
        )


class _IsPartial:
    """Asks whether a partial is made of the objects of which it was: its `__setstate__` gives it others."""

    def __init__(self, item: partial[Any]) -> None:
        self._item = item
        self._parts = item.func, item.args, item.keywords

    def __call__(self) -> bool:
        function, arguments, keywords = self._parts
        item = self._item
        return item.func is function and item.args is arguments and item.keywords is keywords

    def __repr__(self) -> str:
        return "the parts of a functools.partial"


def _inputs(walk: ValueWalk, lifted: frozenset[Path], opened: OpenSlots) -> dict[int, dict[int, Any]]:
    """By container, and by position in it: what stands for a value that is an input of a program, or that has one."""
    found: dict[int, dict[int, Any]] = {}
    for container in walk.containers:
        for key in container.keys if lifted else ():
            if id(container) in opened.inside or container.path_of(key) not in lifted:
                continue
            outer, inner = container, key
            while isinstance(outer, Fixed) and outer.parent is not None:
                outer, inner = outer.parent, outer.key
            position = outer.position_of(inner)
            expected = _expected(outer.values[position], outer.path_of(inner), lifted)
            found.setdefault(id(outer), {})[position] = expected
    for slot in opened.slots:
        found.setdefault(id(slot.container), {})[slot.container.position_of(slot.key)] = opened.expected(slot, lifted)
    return found


def _expected(value: Any, path: Path, lifted: frozenset[Path]) -> Any:
    if path in lifted:
        return OfType(type(value))
    if is_a(value, tuple):
        parts = [_expected(part, (*path, n), lifted) for n, part in enumerate(tuple.__iter__(value))]
        return TupleOf(type(value), tuple(parts))
    return value
