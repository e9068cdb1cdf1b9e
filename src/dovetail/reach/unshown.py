"""What code can change of the objects that it meets without an event that shows it, as it was when they were met."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from types import ModuleType
from typing import Any

from dovetail.reach.contents import MISSING
from dovetail.reach.libraries import is_library_class
from dovetail.reach.slots import in_slot
from dovetail.reach.values import (
    attributes_of,
    has_attributes,
    is_heap_type,
    is_same,
    own_of,
    random_state,
    set_random_state,
    slots_of,
)


class Unshown:
    """Random generators outside torch, by where they stand; real tensors, by their attributes and `requires_grad`;
    classes of the user's, and dictionaries of global variables, by the names that they have; objects of such classes,
    by their attributes and slots.
    """

    def __init__(self) -> None:
        self._sources: list[tuple[Any, Any, Any]] = []
        self._tensors: list[tuple[Any, bool, dict[str, Any]]] = []
        self._classes: list[tuple[type, frozenset[str]]] = []
        self._objects: dict[int, tuple[Any, dict[str, Any]]] = {}
        self._namespaces: dict[int, tuple[dict[str, Any], frozenset[str]]] = {}
        self._slots: list[tuple[Any, Any, Any]] = []
        self._kinds: dict[type, tuple[bool, list[Any]]] = {}

    def add_source(self, source: Any) -> None:
        """A generator was met."""
        self._sources.append((source, *random_state(source)))

    def add_tensor(self, tensor: Any, own: dict[str, Any]) -> None:
        """A real tensor was met. own: its attributes."""
        self._tensors.append((tensor, tensor.requires_grad, dict(own)))

    def add_class(self, kind: type) -> None:
        """A class was met."""
        self._classes.append((kind, frozenset(own_of(kind))))

    def new_in_classes(self) -> Iterator[tuple[type, str]]:
        """Attributes that classes have now, and did not have."""
        for kind, names in self._classes:
            for name in own_of(kind).keys() - names:
                if not name.startswith("__"):  # what Python itself notes there
                    yield kind, name

    def add_namespace(self, known: dict[str, Any]) -> None:
        """Code was given the dictionary of global variables."""
        self._namespaces.setdefault(id(known), (known, frozenset(known)))

    def new_variables(self) -> Iterator[tuple[dict[str, Any], str]]:
        """Global variables that there are now, and were not: each with its dictionary."""
        for known, names in self._namespaces.values():
            yield from ((known, name) for name in known.keys() - names)

    def add_object(self, item: Any) -> None:
        """A value was met, perhaps an object of a class of the user's."""
        kind = type(item)
        known = self._kinds.get(kind)
        if known is None:
            is_users = is_heap_type(kind) and not (is_library_class(kind) or issubclass(kind, (type, ModuleType)))
            slots = list(slots_of(kind).values()) if is_users else []
            known = self._kinds[kind] = (is_users and has_attributes(kind), slots)
        if known[0] and (held := attributes_of(item)) is not item:
            self._objects[id(item)] = (item, dict(held))
        self._slots += [(item, descriptor, in_slot(item, descriptor)) for descriptor in known[1]]

    def before(self, item: Any) -> dict[str, Any]:
        """The attributes that an object had when it was met; those of now where it was not."""
        return self._objects[id(item)][1] if id(item) in self._objects else attributes_of(item)

    @property
    def kinds(self) -> Collection[type]:
        """The classes of values that were met."""
        return self._kinds

    def attributes(self, kinds: Collection[type]) -> Iterator[tuple[Any, str, Any]]:
        """Attributes that hold something else now, and all those of objects of some classes.

        For each: the object, the name, and what was there.
        """
        for item, old in self._objects.values():
            now, is_whole = attributes_of(item), type(item) in kinds
            for name in {**old, **now}:
                was = old.get(name, MISSING)
                if type(name) is str and (is_whole or not is_same(was, now.get(name, MISSING))):
                    yield item, name, was

    def slots(self, kinds: Collection[type]) -> Iterator[tuple[Any, Any, Any]]:
        """The same of `__slots__`: the object, the descriptor, and what was there."""
        for item, descriptor, old in self._slots:
            if type(item) in kinds or not is_same(old, in_slot(item, descriptor)):
                yield item, descriptor, old

    def put_sources_back(self) -> list[Any]:
        """Let generators stand where they stood. Returns: those that had moved."""
        moved = [(source, state) for source, key, state in self._sources if random_state(source)[0] != key]
        for source, state in moved:
            set_random_state(source, state)
        return [source for source, _ in moved]

    def put_tensors_back(self) -> None:
        """Let tensors have the attributes, and require the gradients, that they had."""
        for tensor, requires_grad, own in self._tensors:
            if tensor.is_leaf and tensor.requires_grad is not requires_grad:
                tensor.requires_grad_(requires_grad)
            now = attributes_of(tensor)
            if now is not None and (now.keys() != own.keys() or any(now[name] is not own[name] for name in own)):
                now.clear()
                now.update(own)
