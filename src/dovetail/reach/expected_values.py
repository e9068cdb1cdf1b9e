"""What stands for values that are inputs of a program, where a guard expects a value.

Of an input only the type counts (`OfType`). What holds inputs, and is new in each call, counts by its class and by what
it holds: `TupleOf`, `ListOf`, `DictOf`, `AttributesOf`, `SlotsOf`; `UnreadOf` by its class alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dovetail.reach.contents import MISSING
from dovetail.reach.slots import in_slot
from dovetail.reach.values import attributes_of, is_a, is_same


@dataclass(frozen=True, slots=True, eq=False)
class OfType:
    """Stands for a value that is an input of a program: only its type counts."""

    kind: type

    @property
    def can_change(self) -> bool:
        """Whether code can change what it stands for, or what that holds: then it counts which objects are one."""
        return issubclass(self.kind, np.ndarray)

    @property
    def is_new(self) -> bool:
        """Whether it stands for something mutable that is another object in each call."""
        return False

    def fits(self, now: Any) -> bool:
        """Whether a value can be that input."""
        return type(now) is self.kind

    def changing(self, now: Any) -> Iterator[Any]:
        """What can change, of a value that fits."""
        if self.can_change:
            yield now


class Anything:
    """Stands for what is looked at elsewhere."""

    can_change = is_new = False

    def fits(self, _: Any) -> bool:
        """See `OfType`."""
        return True


@dataclass(slots=True, eq=False)
class PartsOf:
    """Stands for an object that holds inputs of a program. parts: what it is to hold, or what stands for that."""

    kind: type
    parts: tuple[Any, ...]
    _types: list[type] | None = field(init=False)
    _changing: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self._types = [x.kind for x in self.parts] if all(type(x) is OfType for x in self.parts) else None
        self._changing = [n for n, part in enumerate(self.parts) if can_change(part)]

    @property
    def can_change(self) -> bool:
        """See `OfType`."""
        return True

    @property
    def is_new(self) -> bool:
        """See `OfType`."""
        return True

    def fits(self, now: Any) -> bool:
        """Whether an object of the same class holds such parts."""
        if type(now) is not self.kind:
            return False
        held = self.held(now)
        if held is None:
            return False
        return all(map(fits, self.parts, held)) if self._types is None else list(map(type, held)) == self._types

    def held(self, now: Any) -> Iterable[Any] | None:
        """The parts of an object of the class; None where it has more, or fewer."""
        raise NotImplementedError

    def owner(self, now: Any) -> tuple[Any, ...]:
        """What can change of the object itself."""
        return (now,)

    def changing(self, now: Any) -> Iterator[Any]:
        """See `OfType`."""
        yield from self.owner(now)
        if self._changing:
            held = list(self.held(now) or ())
            for n in self._changing:
                yield from self.parts[n].changing(held[n])


@dataclass(slots=True, eq=False)
class TupleOf(PartsOf):
    """Stands for a tuple, of a class of the user's perhaps."""

    @property
    def can_change(self) -> bool:
        return bool(self._changing)

    @property
    def is_new(self) -> bool:
        return any(map(is_new, self.parts))

    def held(self, now: Any) -> Iterable[Any] | None:
        return tuple.__iter__(now) if tuple.__len__(now) == len(self.parts) else None

    def owner(self, now: Any) -> tuple[Any, ...]:
        return ()


class ListOf(PartsOf):
    """Stands for a list."""

    __slots__ = ()

    def held(self, now: Any) -> Iterable[Any] | None:
        return list.__iter__(now) if list.__len__(now) == len(self.parts) else None


@dataclass(slots=True, eq=False)
class DictOf(PartsOf):
    """Stands for a dictionary. keys: plain ones, in order."""

    keys: tuple[Any, ...]

    def held(self, now: Any) -> Iterable[Any] | None:
        return _whole(now, self.keys)


@dataclass(slots=True, eq=False)
class AttributesOf(PartsOf):
    """Stands for an object. names: of its attributes; is_whole: it has no others, and has them in this order."""

    names: tuple[str, ...]
    is_whole: bool

    def held(self, now: Any) -> Iterable[Any] | None:
        table = attributes_of(now)
        return _whole(table, self.names) if self.is_whole else [dict.get(table, x, MISSING) for x in self.names]

    def owner(self, now: Any) -> tuple[Any, ...]:
        return (attributes_of(now),)


@dataclass(slots=True, eq=False)
class SlotsOf(PartsOf):
    """Stands for an object whose attributes are slots. descriptors: of these, by name."""

    descriptors: Mapping[str, Any]

    def held(self, now: Any) -> Iterable[Any] | None:
        return [in_slot(now, descriptor) for descriptor in self.descriptors.values()]


class UnreadOf(PartsOf):
    """Stands for a container whose contents nobody reads. It has no parts."""

    __slots__ = ()

    def held(self, now: Any) -> Iterable[Any] | None:
        return ()


STAND_INS = (OfType, PartsOf, Anything)


def fits(expected: Any, now: Any) -> bool:
    """Whether a value is what is expected, or what that stands for."""
    return expected.fits(now) if is_a(expected, STAND_INS) else is_same(expected, now)


def can_change(expected: Any) -> bool:
    """Whether this stands for something in which code can change what is expected, whatever holds it."""
    return is_a(expected, STAND_INS) and expected.can_change


def is_new(expected: Any) -> bool:
    """Whether this stands for something mutable that is another object in each call."""
    return is_a(expected, STAND_INS) and expected.is_new


def _whole(table: dict[Any, Any], keys: Sequence[Any]) -> Iterable[Any] | None:
    is_so = dict.__len__(table) == len(keys) and all(map(is_same, dict.keys(table), keys))
    return dict.values(table) if is_so else None
