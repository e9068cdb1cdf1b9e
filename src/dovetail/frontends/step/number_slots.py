"""Slots of Python numbers that are inputs of a step's program, or that a step leaves a number in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from dovetail.frontends.step.containers import Path, Slot

NUMBERS = (int, float, np.float64)
"""The types of numbers that may be inputs: of NumPy's, the one that is a float of Python's as well."""


class NumberSlot:
    """One number. A number inside a tuple is read and put through the slot that holds the tuple.

    Attributes: slot, path, label: of the slot; item, key: of what can be written; items: where in a tuple it is;
    name: of the input; shown: what the step's code was let read there.
    """

    def __init__(self, slot: Slot, outer: Slot, items: tuple[int, ...]) -> None:
        self.slot = slot
        self.path: Path = slot.path
        self.label = slot.label
        self.name = ""
        self.shown: Any = None
        self._outer = outer
        self.items = items

    @staticmethod
    def at(slot: Slot) -> NumberSlot:
        """The slot of a number."""
        outer, items = slot, list[int]()
        while outer.kind == "tuple" and outer.container.parent is not None:
            items.insert(0, outer.key)
            outer = Slot(outer.container.parent, outer.container.key)
        return NumberSlot(slot, outer, tuple(items))

    @property
    def can_be_put(self) -> bool:
        """Whether another number can be put there: what it is inside of, if that cannot be written, are tuples."""
        try:
            value = self._outer.read()
        except LookupError:  # in a key of a dictionary
            return False
        for item in self.items:
            if not isinstance(value, tuple) or isinstance(value, torch.Size):  # which holds plain numbers alone
                return False
            value = value[item]
        return True

    @property
    def item(self) -> Any:
        """What holds it, or the tuple that it is in."""
        return self._outer.item

    @property
    def key(self) -> tuple[int, Any]:
        """Equal for what one write changes."""
        return id(self._outer.item), self._outer.key

    def read(self) -> Any:
        """The number that is there."""
        value = self._outer.read()
        for item in self.items:
            value = value[item]
        return value

    def write(self, number: Any) -> None:
        """Put a number there."""
        self._outer.write(_with_item(self._outer.read(), self.items, number))

    def reader(self) -> Callable[[], Any]:
        """What reads the slot, and keeps nothing alive that is there now."""
        outer, items = self._outer.reader(), self.items
        if not items:
            return outer

        def read() -> Any:
            value = outer()
            for item in items:
                value = value[item]
            return value

        return read

    def binder(self) -> Callable[[Any], None]:
        """What puts something there, and forgets what was there when the slot was found."""
        outer, items = self._outer, self.items

        def bind(value: Any) -> None:
            container = outer.container
            if container.values and any(key is outer.key for key in container.keys):
                container.values[container.position_of(outer.key)] = None
            outer.write(_with_item(outer.read(), items, value) if items else value)

        return bind

    def put(self, number: Any) -> None:
        """Let the step's code read another number."""
        self.shown = number
        self.write(number)


def _with_item(value: Any, items: tuple[int, ...], number: Any) -> Any:
    if not items:
        return number
    parts = [_with_item(part, items[1:], number) if n == items[0] else part for n, part in enumerate(value)]
    made: Any = tuple.__new__(type(value), parts)
    return made
