"""Words of memory that show whether what a guard compares is as it was: many of them, asked at once by machine code.

Each is an address with the word that was there when everything was as expected: the class of an object, the version of
a dictionary, how many items a list has, what a variable holds. They stand in an order in which an address is only
looked at after the words that say that it is still what it was. Where a word is another one, a check may find that what
it leads to is as good, and gives the word that is expected from then on.

Cost: 1 ns for each word, where Python's own comparisons take 30 to 100.
"""

from __future__ import annotations

import weakref
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from types import FunctionType
from typing import Any, TypeAlias

from dovetail.reach.contents import MISSING
from dovetail.reach.expected_values import PartsOf
from dovetail.reach.object_layout import (
    ObjectLayout,
    object_at,
    object_layout,
    place_of_member,
    place_of_table,
    word_at,
)
from dovetail.reach.values import is_a
from dovetail.torch_compat.guards import version_of_dict

ChangedWord: TypeAlias = Callable[[int, int, int], int]
"""The number of the first pair, from one number to before another one, at whose address is another word than expected;
-1 if there is no such pair. Given the address of pairs, each an address and a word."""

Check: TypeAlias = Callable[[], "int | None"]
"""The word that is as good as the one that was expected; None where what is there is not."""

Place: TypeAlias = "int | Callable[[], Any] | None"
"""Where a value is: an address, or what gives it; None where other words show it."""

LookedInto: TypeAlias = "tuple[PartsOf, Callable[[], Any]]"

_WORD = 8


class NotInWords(Exception):
    """No words show whether something is as it was."""


class MemoryWords:
    """Whether words are as they were; see the module docstring."""

    __slots__ = ("_changed", "_checks", "_count", "_known", "_new", "_pairs", "_start")

    def __init__(
        self,
        changed: ChangedWord,
        pairs: array[int],
        checks: dict[int, Check],
        new: Sequence[LookedInto] = (),
        known: AbstractSet[int] = frozenset(),
    ) -> None:
        """Expect these. checks: by the number of the pair. new, known: see `look_into` and `made` of `WordList`."""
        self._changed = changed
        self._new, self._known = new, known
        self._pairs = pairs
        self._start, self._count = pairs.buffer_info()[0], len(pairs) // 2
        self._checks = checks

    def are_as_before(self) -> bool:
        """Whether they are."""
        at = self._changed(self._start, 0, self._count)
        while at >= 0:
            check = self._checks.get(at)
            word = None if check is None else check()
            if word is None:
                return False
            self._pairs[2 * at + 1] = word
            at = self._changed(self._start, at + 1, self._count)
        return not self._new or self._are_new_as_expected()

    def _are_new_as_expected(self) -> bool:
        """Whether what is new in each call holds what is expected, and each is an object of its own."""
        changing = list[int]()
        for expected, get in self._new:
            now = get()
            if not expected.fits(now):
                return False
            changing += map(id, expected.changing(now))
        return len(set(changing)) == len(changing) and self._known.isdisjoint(changing)


class WordList:
    """Words as they are put together. Nothing of the user's is kept alive by them."""

    def __init__(self) -> None:
        """Begin with none. Raises: NotInWords where the layout of objects is not known."""
        layout = object_layout()
        if layout is None:
            raise NotInWords
        self.layout: ObjectLayout = layout
        self._pairs: list[tuple[int, int]] = []
        self._checks: dict[int, Check] = {}
        self.new: list[LookedInto] = []

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._pairs)

    def made(self, changed: ChangedWord, met: Iterable[Any] = ()) -> MemoryWords:
        """What compares them. met: objects that code can change; those that are not new stay what they are."""
        new = {id(x) for expected, get in self.new for x in expected.changing(get())}
        return MemoryWords(changed, *self.taken(), self.new, frozenset(map(id, met)) - new)

    def look_into(self, expected: PartsOf, place: Place) -> None:
        """Where the words are as they were, look at something that is new in each call. Raises: NotInWords."""
        if place is None:
            raise NotInWords
        self.new.append((expected, partial(in_slot_at, place) if isinstance(place, int) else place))

    def taken(self) -> tuple[array[int], dict[int, Check]]:
        """The pairs, and what is asked where the word of one is another one; for what compares them by itself."""
        return array("Q", [word for pair in self._pairs for word in pair]), self._checks

    def forget_from(self, count: int) -> None:
        """Keep so many, the first ones, and look into nothing."""
        self.new.clear()
        del self._pairs[count:]
        self._checks = {at: check for at, check in self._checks.items() if at < count}

    def add(self, address: int, expected: int, check: Check | None = None) -> None:
        """One more. check: what is asked where it is another one."""
        if check is not None:
            self._checks[len(self._pairs)] = check
        self._pairs.append((address, expected))

    def add_slot(self, address: int, expected: int, check: Check | None = None) -> None:
        """A slot that leads to an object of this identity. Null stands for None in some, and for nothing in others."""
        is_null = expected in (id(None), id(MISSING)) and word_at(address) == 0
        self.add(address, 0 if is_null else expected, check)

    def add_class(self, item: Any) -> None:
        """The class of an object."""
        self.add(id(item) + self.layout.kind, id(type(item)))

    def add_reference(self, reference: Any, item: Any) -> int | None:
        """What a weak reference leads to, and the address of that; None for other ways to keep an object."""
        if type(reference) is not weakref.ref:
            return None
        self.add(id(reference) + self.layout.referent, id(item))
        return id(reference) + self.layout.referent

    def add_table(self, item: Any, table: dict[str, Any]) -> int:
        """The `__dict__` of an object: which one it is, and where that stands. Raises: NotInWords."""
        try:
            place = place_of_table(item, table)
        except LookupError:
            raise NotInWords from None
        self.add(place, id(table))
        return place

    def add_class_table(self, kind: type, table: dict[str, Any]) -> int:
        """The same for a class."""
        place = id(kind) + self.layout.class_table
        self.add(place, id(table))
        return place

    def add_version(self, table: dict[Any, Any], check: Check | None = None) -> None:
        """The version of a dictionary, as it is now."""
        assert version_of_dict is not None, "the layout is known"
        self.add(id(table) + self.layout.version, version_of_dict(table), check)

    def add_size(self, item: Any, size: int) -> None:
        """How many things a list, tuple, deque, set or dictionary holds."""
        self.add(id(item) + (self.layout.set_size if is_a(item, (set, frozenset)) else self.layout.size), size)

    def slots_of_cells(self, cells: Sequence[Any]) -> list[int]:
        """Where variables hold what they hold."""
        return [id(cell) + self.layout.cell for cell in cells]

    def slots_of_functions(self, functions: Sequence[Any]) -> list[int]:
        """Where functions have their `FUNCTION_PARTS`."""
        return [id(function) + offset for function in functions for offset in self.layout.function]

    def slots_of_function(self, function: Any) -> list[int]:
        """The same, and where its `__dict__` is."""
        return [*self.slots_of_functions([function]), id(function) + self.layout.function_table]

    def slots_of(self, item: Any) -> list[int]:
        """Where an object that is no container has its parts. Raises: NotInWords."""
        if type(item) is FunctionType:
            return self.slots_of_function(item)
        if type(item) is weakref.ref:
            return [id(item) + self.layout.referent]
        raise NotInWords

    def slot_of_member(self, item: Any, descriptor: Any, value: Any) -> int:
        """Where an object has what a descriptor of its class gives. Raises: NotInWords."""
        try:
            return place_of_member(item, descriptor, value)
        except LookupError:
            raise NotInWords from None

    def open(self, item: Any, base: Any, count: int) -> list[Place]:
        """What shows that a container of a built-in class holds so many things, and where; a dictionary's keys and
        values are as they were while its version is. Raises: NotInWords.
        """
        if base not in (list, tuple, dict) and (base is not OrderedDict or count):
            raise NotInWords
        self.add_class(item)
        if base is dict and count:
            self.add_version(item)
            return [None] * count
        self.add_size(item, count)
        if not count:
            return []
        if base is tuple:
            return [id(item) + self.layout.parts + n * _WORD for n in range(count)]
        start = word_at(id(item) + self.layout.items)
        self.add(id(item) + self.layout.items, start)
        return [start + n * _WORD for n in range(count)]


def in_slot_at(address: int) -> Any:
    """What the word at an address leads to; MISSING where it is null."""
    try:
        return object_at(address)
    except ValueError:
        return MISSING
