"""A description of what a step function can read, to be compared with a later one.

It knows plain values by type and value, tensors by where they are held first, containers by what is in them, and
anything else by identity. It keeps no tensor alive. What only a scheduler leads to is left out, and so is the order of
the keys of an optimizer's group, which is another after a state was loaded.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any

from dovetail.frontends.step.containers import Container, Fixed, Named, Path, Sequential, Unordered
from dovetail.frontends.step.hook_tables import HookTable
from dovetail.frontends.step.value_walk import OPTIMIZER, SCHEDULER, ValueWalk
from dovetail.reach.contents import MISSING
from dovetail.reach.values import ATTRIBUTES_ALONE, PLAIN, Kind, built_in_base, fingerprint, holds_more, is_a, plain_key

_BY_VALUE = (Kind.TUPLE, Kind.FROZENSET, Kind.METHOD)
_ONLY_TEXT = {str}


@dataclass(frozen=True, slots=True)
class Identity:
    """An object that is known by which one it is; it is kept alive, so that no other can be taken for it."""

    item: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and other.item is self.item

    def __hash__(self) -> int:
        return id(self.item)

    def __repr__(self) -> str:
        return f"<{type(self.item).__name__} at {id(self.item):#x}>"


@dataclass(frozen=True, slots=True)
class Lifted:
    """A value that is an input of a program: only its type counts."""

    kind: type

    def __repr__(self) -> str:
        return f"any {self.kind.__name__}"


@dataclass(frozen=True, slots=True)
class Difference:
    """A slot that two records describe differently.

    old, new: the plain value there, MISSING where there is no such slot, else a description. label: what a user would
    write for it.
    """

    path: Path
    label: str
    old: Any
    new: Any


@dataclass(slots=True, eq=False, repr=False)
class Record:
    """entries: of each slot, MISSING for an attribute that is read but not there; shapes: of each container, its type,
    and its keys where all are read; hooks: of tables of hooks that are not empty."""

    entries: dict[Path, Hashable] = field(default_factory=dict)
    shapes: dict[Path, Hashable] = field(default_factory=dict)
    hooks: set[Path] = field(default_factory=set)
    labels: dict[Path, str] = field(default_factory=dict)

    def fits(self, later: Record) -> bool:
        """Whether a later one, made when more may have been read, has the same in all that this one has."""
        entries, shapes = later.entries, later.shapes
        if any(len(path) == 1 or path[:-1] in self.entries for path in later.hooks - self.hooks):
            return False
        return all(entries.get(path, MISSING) == entry for path, entry in self.entries.items()) and all(
            shapes.get(path, MISSING) == shape for path, shape in self.shapes.items()
        )

    def __repr__(self) -> str:
        return f"<record of {len(self.entries)} slots in {len(self.shapes)} containers>"


def record_of(walk: ValueWalk, lifted: frozenset[Path], modes: Hashable) -> Record:
    """Describe what was reached, as it was when it was walked. lifted: slots of which only the type counts."""
    record = Record()
    record.entries[("modes",)] = ("modes", modes)
    record.labels[("modes",)] = "the modes of torch"
    alike = dict[int, Path]()  # arrays, which are described by what they hold, and what nobody reads: their first slots
    own = {id(table) for _, _, table, _ in walk.objects}
    for container in walk.containers:
        if container.rank == SCHEDULER:
            continue
        base = container.path
        if base in lifted:  # attributes of a tensor that may be another one
            continue
        if isinstance(container, HookTable):
            if not container.keys:
                continue
            record.hooks.add(base)
        shape = _shape(walk, container)
        if shape is not None:
            record.shapes[(*base, f"<{container.kind}>")] = shape
            record.labels[(*base, f"<{container.kind}>")] = container.title
        if isinstance(container, Unordered):
            continue
        for key, value in zip(container.keys, container.values, strict=True):
            if not container.is_read(key):
                continue
            path = container.path_of(key)
            entry = Lifted(type(value)) if path in lifted else _entry(walk, container, key, value)
            is_alike = walk.kind(value) is Kind.ARRAY or id(value) in walk.unread
            if is_alike and alike.setdefault(id(value), path) != path:
                entry = ("same as", alike[id(value)], entry)
            record.entries[path] = entry
            record.labels[path] = container.label_of(key)
        if container.read_names is not None and id(container.item) in own:  # one may come to be
            for name in sorted(frozenset(container.read_names).difference(container.keys)):
                record.entries[container.path_of(name)] = MISSING
                record.labels[container.path_of(name)] = container.label_of(name)
    return record


def difference(old: Record, new: Record) -> list[Difference]:
    """Where a later record does not fit an old one: slots that are gone or changed, containers of another shape.

    New slots are told where a container has another shape.
    """
    found = []
    grown = {path[:-1] for path, shape in old.shapes.items() if new.shapes.get(path, MISSING) != shape}
    for path in [*old.entries, *(p for p in new.entries if p not in old.entries and p[:-1] in grown)]:
        before, after = old.entries.get(path, MISSING), new.entries.get(path, MISSING)
        if before is not after and (before is MISSING or after is MISSING or before != after):
            label = old.labels.get(path) or new.labels.get(path, "")
            found.append(Difference(path, label, _shown(before), _shown(after)))
    reported = {found_path[:n] for found_path in (x.path for x in found) for n in range(1, len(found_path) + 1)}
    for path, before in old.shapes.items():
        after = new.shapes.get(path, MISSING)
        if after is not MISSING and before != after and path[:-1] not in reported:
            found.append(Difference(path[:-1], old.labels.get(path, ""), before, after))
    return found


def _entry(walk: ValueWalk, container: Container, key: Any, value: Any) -> Hashable:
    if type(value) in PLAIN:
        return plain_key(value)
    kind = walk.kind(value)
    if kind is Kind.PLAIN:  # of NumPy
        return plain_key(value)
    if kind is Kind.TENSOR:
        slot = walk.first_slot(value)
        return ("tensor", slot.path) if slot is not None else Identity(value)
    if kind in _BY_VALUE:
        return ("of type", type(value), Identity(value) if holds_more(value) else None)
    if kind is Kind.ARRAY:
        held = fingerprint(value)
        return ("array", held) if held is not None else Identity(value)
    met = walk.met.get(id(value))
    if met is None:
        return ("of type", type(value), None) if id(value) in walk.unread else Identity(value)
    if met.parent is not container or met.key is not key:
        return ("same as", met.path)
    return ("of type", type(value), _own_value(value) if kind is Kind.OBJECT else None)


def _own_value(value: Any) -> Hashable:
    """What an object holds beside its attributes, because its class is one of the user's under one of Python's.

    The number, or the text, of a class under `int`, `str` and their like; the object itself where it cannot be told
    (dates, exceptions); None where there is nothing.
    """
    base = built_in_base(type(value))
    if base in ATTRIBUTES_ALONE:
        return None
    shown = _SHOWN.get(base)
    return Identity(value) if shown is None else plain_key(shown(value))


_SHOWN: dict[type, Callable[[Any], Any]] = {
    int: int.__int__,
    float: float.__float__,
    complex: complex.__complex__,
    str: str.__str__,
    bytes: bytes.__bytes__,
}


def _shape(walk: ValueWalk, container: Container) -> Hashable:
    kind = type(container.owner)
    if isinstance(container, Named):
        return None
    if isinstance(container, HookTable):
        return len(container.keys)
    if isinstance(container, Sequential | Fixed):
        return (kind, len(container.keys), container.item.maxlen if is_a(container.item, deque) else None)
    if isinstance(container, Unordered):
        return (kind, tuple(_entry(walk, container, n, x) for n, x in enumerate(container.values)))
    if container.kind == "cell":
        return (kind, len(container.keys))
    if container.read_names is not None:
        return (kind,)
    names = tuple(_key_names(container))
    if container.rank == OPTIMIZER and "params" in names:  # a group, whose keys move when a state is loaded
        return (kind, frozenset(names))
    return (kind, names)


def _key_names(container: Container) -> Iterator[Hashable]:
    keys = container.keys
    if set(map(type, keys)) <= _ONLY_TEXT:
        yield from keys
        return
    for key in keys:
        if type(key) in PLAIN:
            yield plain_key(key)
        else:
            yield container.names[id(key)][0] if id(key) in container.names else _of_plain_parts(key)


def _of_plain_parts(key: Any) -> Hashable:
    return tuple(map(_of_plain_parts, key)) if type(key) is tuple else plain_key(key)


def _shown(entry: Any) -> Any:
    """A plain value itself; other entries as they are."""
    if isinstance(entry, tuple) and isinstance(entry[0], type):
        kind = entry[0]
        if kind is float or kind is complex:
            return _unpacked(kind, entry[1])
        return range(*entry[1:]) if kind is range else entry[-1]
    return entry


def _unpacked(kind: type, packed: bytes) -> Any:
    parts = struct.unpack("=d" if kind is float else "=dd", packed)
    return parts[0] if kind is float else complex(*parts)
