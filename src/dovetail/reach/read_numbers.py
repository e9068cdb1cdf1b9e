"""Slots that hold Python numbers: which of them have changed since a call was recorded, and how they are read and put.

A number that changes between calls can be an input of a program instead of something that it is guarded by. For the
time of a recording, the slot then holds a number that is traced.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from dovetail.reach.contents import MISSING, in_cell, value_key
from dovetail.reach.guarded import Guarded, Table
from dovetail.reach.values import attributes_of, own_of

_NUMBERS = (int, float)


@dataclass(frozen=True, slots=True)
class ReadNumber:
    """A slot that held a number. kind: the type of the number. label: what a user would write for the slot.

    held_by: what holds it; nothing of the user's is kept alive by that. name: of the attribute or variable.
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
def numbers_put(slots: Sequence[ReadNumber], numbers: Sequence[Any]) -> Iterator[None]:
    """While active, slots hold these numbers."""
    with ExitStack() as stack:
        for slot, number in zip(slots, numbers, strict=True):
            stack.callback(slot.put, slot.read())
            slot.put(number)
        yield


class ReadNumbers:
    """The numbers among what a recorded call has read: attributes of objects and classes, variables."""

    def __init__(self, slots: Guarded) -> None:
        """Remember what the slots held."""
        found = [*_attributes_read(slots), *_variables_read(slots)]
        self._slots = [slot for slot, _ in found]
        self._keys = [value_key(value) for _, value in found]

    def changed(self) -> list[ReadNumber]:
        """The slots that hold other numbers, of the same type."""
        now = [slot.read() for slot in self._slots]
        pairs = zip(self._slots, self._keys, now, strict=True)
        return [slot for slot, key, value in pairs if type(value) is slot.kind and value_key(value) != key]


def _attributes_read(slots: Guarded) -> Iterator[tuple[ReadNumber, Any]]:
    """Attributes of objects and of classes, with what they held."""
    for number, table in slots.tables:
        owner = slots.objects[number][0]
        held_by = _attributes(owner)
        if held_by is not None:
            yield from _entries(table, held_by, id(attributes_of(owner)))
    for kind, table in slots.class_tables:
        yield from _entries(table, weakref.ref(kind), id(kind))


def _variables_read(slots: Guarded) -> Iterator[tuple[ReadNumber, Any]]:
    """Global variables, and those of closures, with what they held."""
    for space, table in slots.dictionaries:
        yield from _entries(table, _Kept(space), id(space))
    for cell, name, value in slots.cells:
        if type(value) in _NUMBERS:
            yield ReadNumber(f"variable {name}", type(value), name, _Kept(cell), (id(cell), name)), value


def _entries(table: Table, held_by: Callable[[], Any], holder: int) -> Iterator[tuple[ReadNumber, Any]]:
    for name, value in zip(table.names, table.values, strict=True):
        if type(value) in _NUMBERS:
            yield ReadNumber(table.label(name), type(value), name, held_by, (holder, name)), value


class _Kept:
    """What holds variables: the namespace of a module, or a cell."""

    __slots__ = ("_item",)

    def __init__(self, item: Any) -> None:
        self._item = item

    def __call__(self) -> Any:
        return self._item


def _attributes(owner: Any) -> Callable[[], Any] | None:
    """What gives the attributes of an object, None once it is gone; None for one that cannot be referred to weakly."""
    try:
        reference = weakref.ref(owner)
    except TypeError:
        return None
    return lambda: None if (item := reference()) is None else attributes_of(item)
