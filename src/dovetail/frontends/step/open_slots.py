"""Slots in which calls leave new containers: what these hold is read, and looked at, wherever it lies then.

A step that hands its state on, as a function would, leaves a new list, dictionary or object in each call. A guard that
asked for the old one would never hold again. Here another one of the same class is as good, if it holds the like. That
is so for containers that nothing else holds; what two slots lead to counts by which one it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from functools import partial
from operator import itemgetter
from typing import Any

import torch

from dovetail.frontends.step.containers import Container, Fixed, Named, Path, Slot
from dovetail.frontends.step.number_slots import NumberSlot
from dovetail.frontends.step.value_walk import SCHEDULER, ValueWalk
from dovetail.reach.contents import MISSING
from dovetail.reach.expected_values import AttributesOf, DictOf, ListOf, OfType, SlotsOf, TupleOf, UnreadOf
from dovetail.reach.values import Kind, attributes_of, is_a, is_made_again, is_plain_key, slots_of


class OpenSlots:
    """See the module docstring.

    inside: containers that are looked at wherever they lie, by identity. slots: those that lead to them.
    """

    def __init__(self, walk: ValueWalk, paths: Collection[Path]) -> None:
        """paths: of slots in which calls leave new containers."""
        self.inside: dict[int, Container] = {}
        self.slots: list[Slot] = []
        if not paths:
            return
        self._walk = walk
        self._holders = Counter(id(value) for container in walk.containers for value in container.values)
        self._below: dict[tuple[int, int], list[Container]] = {}
        for container in walk.containers:
            if container.parent is not None:
                self._below.setdefault((id(container.parent), id(container.key)), []).append(container)
        for container in walk.containers:
            if container.rank == SCHEDULER or isinstance(container, Fixed):
                continue
            for key, value in zip(container.keys, container.values, strict=True):
                if container.is_read(key) and container.path_of(key) in paths and self._open(container, key, value):
                    self.slots.append(Slot(container, key))

    def _open(self, parent: Container, key: Any, value: Any) -> bool:
        """Whether a value is looked into, wherever it lies; note it then, and those inside it."""
        if id(value) in self._walk.unread:
            return self._holders[id(value)] == 1
        container = self._container_of(parent, key, value)
        if container is None:
            return False
        self.inside[id(container)] = container
        for inner, held in zip(container.keys, container.values, strict=True):
            if container.is_read(inner):
                self._open(container, inner, held)
        return True

    def _container_of(self, parent: Container, key: Any, value: Any) -> Container | None:
        kind = self._walk.kind(value)
        if not (kind is Kind.TUPLE or _may_be_new(self._walk, value)):
            return None
        found = [x for x in self._below.get((id(parent), id(key)), ()) if x.owner is value]
        if len(found) != 1 or (kind is not Kind.TUPLE and self._holders[id(value)] != 1):
            return None
        (container,) = found
        if container.names or (type(value) is dict and not all(map(is_plain_key, container.keys))):
            return None
        return container

    def expected(self, slot: Slot, lifted: frozenset[Path]) -> Any:
        """What stands for the value of a slot. lifted: slots of inputs."""
        return self._expected(
            slot.container, slot.key, slot.container.values[slot.container.position_of(slot.key)], lifted
        )

    def _expected(self, parent: Container, key: Any, value: Any, lifted: frozenset[Path]) -> Any:
        if parent.path_of(key) in lifted:
            return OfType(type(value))
        if id(value) in self._walk.unread and self._holders[id(value)] == 1:
            return UnreadOf(type(value), ())
        container = self._container_of(parent, key, value)
        if container is None or id(container) not in self.inside:
            return value
        held = dict(zip(container.keys, container.values, strict=True))
        names = list(filter(container.is_read, held))
        if container.read_names is not None and not isinstance(container, Named):  # one may come to be
            names += sorted(frozenset(container.read_names).difference(held))
        parts = tuple(self._expected(container, x, held[x], lifted) if x in held else MISSING for x in names)
        kind = type(value)
        if is_a(value, tuple):
            return TupleOf(kind, parts)
        if kind is list:
            return ListOf(kind, parts)
        if kind is dict:
            return DictOf(kind, parts, tuple(names))
        if isinstance(container, Named):
            descriptors = slots_of(kind)
            return SlotsOf(kind, parts, {name: descriptors[name] for name in names})
        return AttributesOf(kind, parts, tuple(names), container.read_names is None)

    def tensors(self) -> Iterable[Slot]:
        """The slots of tensors inside."""
        for container in self.inside.values():
            for key, value in zip(container.keys, container.values, strict=True):
                if container.is_read(key) and is_a(value, torch.Tensor):
                    yield Slot(container, key)

    def reader(self, slot: Slot) -> Callable[[], Any]:
        """What reads a slot in later calls. It raises LookupError, AttributeError or TypeError where it is gone."""
        looks = list[Callable[[Any], Any]]()
        container, key = slot.container, slot.key
        while id(container) in self.inside:
            looks.insert(0, _look(container, key))
            assert container.parent is not None, "a slot leads to it"
            container, key = container.parent, container.key
        return partial(_read, container.reader(key), looks) if looks else NumberSlot.at(slot).reader()


def new_containers(walk: ValueWalk, known: Collection[int]) -> frozenset[Path]:
    """The slots of lists, dictionaries and objects that are not among known ones, by identity, but for what is inside
    of others that are new.
    """
    found = set[Path]()
    for container in walk.containers:
        parent, key = container.parent, container.key
        while isinstance(parent, Fixed):
            key, parent = parent.key, parent.parent
        if parent is not None and _is_new(walk, container, known) and not _is_new(walk, parent, known):
            found.add(parent.path_of(key))
    return frozenset(found)


def _is_new(walk: ValueWalk, container: Container, known: Collection[int]) -> bool:
    return id(container.owner) not in known and _may_be_new(walk, container.owner)


def _may_be_new(walk: ValueWalk, value: Any) -> bool:
    """Whether a container, or an object, is as good as another one of its class that holds the same."""
    is_plain = type(value) in (list, dict)
    return is_plain or (walk.kind(value) in (Kind.OBJECT, Kind.MODULE) and is_made_again(type(value)))


def paths_of_new(bound: Iterable[Path], fixed: Iterable[Path]) -> frozenset[Path]:
    """The slots, of those in which calls leave something, in which nothing is written, or found, otherwise.

    fixed: slots that are written, or looked at, where a program is bound.
    """
    every = [*bound]
    within = {path[:n] for path in fixed for n in range(1, len(path) + 1)}
    within |= {path[:n] for path in every for n in range(1, len(path))}
    return frozenset(every) - within


def _look(container: Container, key: Any) -> Callable[[Any], Any]:
    """What gives a part of another object like the owner of a container."""
    if isinstance(container, Fixed):
        return lambda item: tuple.__getitem__(item, key)
    if isinstance(container, Named):
        return slots_of(type(container.item))[key].__get__  # type: ignore[no-any-return]
    return itemgetter(key) if container.owner is container.item else lambda item: attributes_of(item)[key]


def _read(outer: Callable[[], Any], looks: Iterable[Callable[[Any], Any]]) -> Any:
    value = outer()
    for look in looks:
        value = look(value)
    return value
