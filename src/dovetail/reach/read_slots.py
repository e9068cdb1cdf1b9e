"""Slots that hold numbers or tensors: which have changed since a call was recorded, and how they are read and put.

What changes between calls can be an input of a program instead of something that it is guarded by. For the time of a
recording, the slot then holds a number that is traced, or tensors without contents.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from dovetail.reach.contents import MISSING, in_cell, value_key
from dovetail.reach.guarded import Guarded, Table
from dovetail.reach.libraries import is_library_class
from dovetail.reach.made_objects import held_by
from dovetail.reach.values import attributes_of, is_a, is_made_of_attributes, own_of
from dovetail.torch_compat.fakes import is_fake

_NUMBERS = (int, float)
_TENSORS = (torch.Tensor, torch.nn.Parameter)
_DICTIONARIES = (dict, OrderedDict)
_CONTAINERS = (list, tuple, deque, *_DICTIONARIES)
_PLAIN = (int, float, bool, str, type(None))


@dataclass(frozen=True, slots=True)
class ReadSlot:
    """A slot that held a number, a tensor, a container or an object. label: what a user would write for the slot.

    kind: of what was there. held_by: what holds the slot; nothing of the user's is kept alive by that. name: of the
    attribute or variable.
    """

    label: str
    kind: type
    name: str
    held_by: Callable[[], Any]
    key: tuple[int, str]

    def read(self) -> Any:
        """What is there; MISSING where there is nothing any more."""
        holder = self.held_by()
        if holder is None:
            return MISSING
        if isinstance(holder, type):
            return own_of(holder).get(self.name, MISSING)
        return dict.get(holder, self.name, MISSING) if isinstance(holder, dict) else in_cell(holder)

    def put(self, number: Any) -> None:
        """Let another number be there."""
        holder = self.held_by()
        if isinstance(holder, type):
            type.__setattr__(holder, self.name, number)
        elif isinstance(holder, dict):
            dict.__setitem__(holder, self.name, number)
        else:
            holder.cell_contents = number


@contextmanager
def slots_put(slots: Sequence[ReadSlot], values: Sequence[Any]) -> Iterator[None]:
    """While active, slots hold these values."""
    with ExitStack() as stack:
        for slot, value in zip(slots, values, strict=True):
            stack.callback(slot.put, slot.read())
            slot.put(value)
        yield


class ReadSlots:
    """Numbers, tensors, containers and objects among what a recorded call has read in attributes and variables."""

    def __init__(self, slots: Guarded) -> None:
        """Remember what the slots held."""
        found = [*_attributes_read(slots), *_variables_read(slots)]
        self._numbers = [(slot, value_key(value)) for slot, value in found if slot.kind in _NUMBERS]
        self._others = [(slot, _identities(value)) for slot, value in found if slot.kind not in _NUMBERS]

    def changed_numbers(self) -> list[ReadSlot]:
        """The slots that hold other numbers, of the same type."""
        pairs = [(slot, key, slot.read()) for slot, key in self._numbers]
        return [slot for slot, key, value in pairs if type(value) is slot.kind and value_key(value) != key]

    def changed_tensors(self) -> list[ReadSlot]:
        """The slots that hold other tensors or objects than they did, themselves or in plain containers."""
        pairs = [(slot, known, slot.read()) for slot, known in self._others]
        return [slot for slot, known, value in pairs if held_alone(value) is not None and _identities(value) != known]

    def of(self, tensors: Collection[int]) -> list[ReadSlot]:
        """The slots in which such tensors were found. tensors: by their ids."""
        return [slot for slot, known in self._others if not set(known).isdisjoint(tensors)]


def held_alone(value: Any) -> list[Any] | None:
    """Plain containers, and objects that are nothing but attributes, that lead to tensors and plain values alone.

    None for everything else; where there are plain values and containers only, and where one thing is met twice.
    """
    left, met, is_more = [value], dict[int, Any](), False
    while left:
        item = left.pop()
        kind = type(item)
        if kind in _PLAIN:
            continue
        if kind in _TENSORS:
            if is_fake(item):
                return None
            is_more = True
            continue
        held = _held_by(item)
        if held is None or id(item) in met:
            return None
        met[id(item)] = item
        is_more = is_more or kind not in _CONTAINERS
        left += held
    return list(met.values()) if is_more else None


def _held_by(item: Any) -> list[Any] | None:
    """What a plain container or an object holds; None for one that is more than that."""
    kind = type(item)
    if kind in _DICTIONARIES:
        return list(item.values())
    if kind in _CONTAINERS:
        return list(item)
    return list(held_by(item).values()) if _is_made_of_attributes(kind) else None


_is_made_of_attributes: Callable[[Any], bool] = lru_cache(256)(is_made_of_attributes)


def _identities(value: Any) -> list[int]:
    """Which tensors and objects there are in plain containers, in their order."""
    kind = type(value)
    if kind in _CONTAINERS:
        return [found for item in (value.values() if kind in _DICTIONARIES else value) for found in _identities(item)]
    return [] if kind in _PLAIN else [id(value)]


def _attributes_read(slots: Guarded) -> Iterator[tuple[ReadSlot, Any]]:
    """Attributes of objects and of classes, with what they held.

    Of torch's own modules, numbers alone: they hold weights a second time (`LSTM._flat_weights`), and compare none.
    """
    for number, table in slots.tables:
        owner, kind = slots.objects[number]
        has_numbers_alone = is_a(owner, torch.nn.Module) and is_library_class(kind)
        for slot, value in _entries(table, _attributes(owner), id(attributes_of(owner))):
            if not has_numbers_alone or slot.kind in _NUMBERS:
                yield slot, value
    for kind, table in slots.class_tables:
        yield from _entries(table, weakref.ref(kind), id(kind))


def _variables_read(slots: Guarded) -> Iterator[tuple[ReadSlot, Any]]:
    """Global variables, and those of closures, with what they held."""
    for space, table in slots.dictionaries:
        yield from _entries(table, _Kept(space), id(space))
    for cell, name, value in slots.cells:
        if _is_wanted(value):
            yield ReadSlot(f"variable {name}", type(value), name, _Kept(cell), (id(cell), name)), value


def _entries(table: Table, held_by: Callable[[], Any], holder: int) -> Iterator[tuple[ReadSlot, Any]]:
    for name, value in zip(table.names, table.values, strict=True):
        if _is_wanted(value):
            yield ReadSlot(table.label(name), type(value), name, held_by, (holder, name)), value


def _is_wanted(value: Any) -> bool:
    return type(value) in _NUMBERS or held_alone(value) is not None


class _Kept:
    """What holds variables: the namespace of a module, or a cell."""

    __slots__ = ("_item",)

    def __init__(self, item: Any) -> None:
        self._item = item

    def __call__(self) -> Any:
        return self._item


def _attributes(owner: Any) -> Callable[[], Any]:
    """What gives the attributes of an object, None once it is gone; guards keep one that has no weak references."""
    try:
        reference = weakref.ref(owner)
    except TypeError:
        return _Kept(attributes_of(owner))
    return lambda: None if (item := reference()) is None else attributes_of(item)
