"""Tensors, and objects of them, that code finds in attributes and variables, as if they were among the arguments.

    model.mask = mask; y = model(x)        one program, whatever tensor is there

A program is for the very tensors that the recorded call has found, as the code reads them. Where calls have shown
others in a slot twice, what is there is handed to the next programs under a name that no argument has. While such a
program is recorded, the slot holds tensors without contents.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from dovetail.reach.read_slots import ReadSlot, held_alone

STATE = "\0state"
_ENOUGH = 2  # calls that have shown other tensors


class HandedState:
    """See the module docstring. slots: by the names under which they are handed in."""

    def __init__(self) -> None:
        self.slots: dict[str, ReadSlot] = {}
        self._shown = Counter[tuple[int, str]]()
        self._names: dict[tuple[int, str], str] = {}
        self._left: set[str] = set()

    def learn(self, changed: Iterable[ReadSlot], open_class: Callable[[type], object]) -> bool:
        """Slots hold other tensors than a program is for. Whether more is handed in from now on.

        open_class: gets classes whose objects are to be taken apart.
        """
        found = {slot.key: slot for slot in changed if slot.key not in self._names}
        self._shown.update(found.keys())
        return self.take([slot for key, slot in found.items() if self._shown[key] >= _ENOUGH], open_class)

    def take(self, slots: Iterable[ReadSlot], open_class: Callable[[type], object]) -> bool:
        """From now on, what these hold is handed in, too. Whether that is new."""
        new = [slot for slot in slots if slot.key not in self._names]
        for slot in new:
            name = self._names[slot.key] = str(len(self._names))
            self.slots[name] = slot
            for item in held_alone(slot.read()) or ():
                open_class(type(item))
        return bool(new)

    def handed(self, kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
        """The arguments by name, with what slots hold; not where one container is in two of them."""
        if not self.slots:
            return kwargs
        held: dict[str, Any] = {}
        met = set[int]()
        for name, slot in self.slots.items():
            value = slot.read()
            items = None if name in self._left else held_alone(value)
            if items is not None and met.isdisjoint(map(id, items)):
                met.update(map(id, items))
                held[name] = value
        return {**kwargs, STATE: held} if held else kwargs

    def leave(self) -> frozenset[str]:
        """From now on no container is handed in that was; nor a tensor, if none was. Answers what is left."""
        handed = self.slots.keys() - self._left
        containers = {name for name in handed if not isinstance(self.slots[name].read(), torch.Tensor)}
        left = frozenset(containers or handed)
        self._left |= left
        return left

    def hand_in(self, names: Iterable[str]) -> None:
        """Hand in again what was left."""
        self._left -= set(names)
