"""Whether the Python state that a program relies on is as it was: a guard over slots, and nothing else.

There are two sources of slots, and they are compared alike. What a recorded call has read is guarded by values: nothing
of the user's is kept alive but plain values, containers of them on the way, and what cannot be referred to weakly. What
a program is bound to, because it reads or writes it itself, is guarded by identity as well, and inputs of the program
by their types. When something dies whose identity a guard relies on, it does not hold any more.

Cost of a check: 0.1 us for each object, 0.03 us for each dictionary that did not change and each item of a container.
"""

from __future__ import annotations

import operator
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from gc import get_referents  # of a class's `__dict__`: the dictionary behind it
from itertools import chain, repeat
from typing import Any, TypeAlias

import torch

from dovetail.reach.contents import Snapshot, in_cell
from dovetail.reach.expected_values import can_change, is_new
from dovetail.reach.guarded import FUNCTION_PARTS, Guarded, Table
from dovetail.reach.levels import levels_of, picker
from dovetail.reach.libraries import is_library_class
from dovetail.reach.memory_words import ChangedWord, MemoryWords, NotInWords, Place, WordList
from dovetail.reach.object_layout import object_at
from dovetail.reach.read_slots import ReadSlot, ReadSlots
from dovetail.reach.slots import in_slot
from dovetail.reach.tables import Tables, shows_all
from dovetail.reach.told import name_of_function, told
from dovetail.reach.values import is_a, is_same, name_of
from dovetail.torch_compat.guards import SameTensors

_function_parts = operator.attrgetter(*FUNCTION_PARTS)
_cell_contents = operator.attrgetter("cell_contents")
_dict_of: Any = object.__getattribute__
_own_of: Any = type.__getattribute__
_LONGEST_WAIT = 4096  # calls
_BUILT_IN = (dict, OrderedDict, defaultdict, list, deque, set)  # objects of which cannot become of another class

_Words: TypeAlias = "tuple[MemoryWords, list[Callable[[], Any]] | None]"
"""Words, with what gives the tensors among the values; None where they do not show values."""


class PythonGuard:
    """Compares slots with what they held; see the module docstring."""

    def __init__(self, slots: Guarded) -> None:
        """Expect what the slots held."""
        self._dead: list[Any] = []  # references to what is gone
        self._kept: dict[int, Any] = {}
        self._is_bound = slots.is_bound
        self._slots = None if slots.is_bound else ReadSlots(slots)
        self._set_objects(slots)
        containers = self._set_tables(slots)
        self._set_values(slots, containers)
        for item in (*self._tables.watched, *(x for level in self._levels for x in level.watched)):
            if id(item) not in self._kept:
                self._kept[id(item)] = self._reference(item)
        self._distinct = _count(chain(self._own, self._empty, *(level.changing for level in self._levels)))
        self._tables.forget()
        for level in self._levels:
            level.forget()
        if self._is_bound:  # arrays among the inputs are those of now, and so are new containers
            self._distinct = self._distinct_now() or self._distinct
        self._words: _Words | None = None
        self._changed_word: ChangedWord | None = None
        self._waits, self._waited = 1, 0

    def ask_memory(self, changed_word: ChangedWord | None) -> None:
        """From now on, machine code compares what it can; None for as little as without."""
        self._changed_word = changed_word

    def _set_objects(self, slots: Guarded) -> None:
        """Objects whose classes, and whose attributes, are compared."""
        objects = [item for item, _ in slots.objects]
        self._types = [kind for _, kind in slots.objects]
        self._objects = objects if self._is_bound else list(map(self._reference, objects))
        self._pick_with_table = picker([number for number, _ in (*slots.tables, *slots.bound_tables)])
        self._bound_tables = [table for _, table in slots.bound_tables]

    def _set_tables(self, slots: Guarded) -> list[tuple[Any, str]]:
        """Dictionaries; answers the containers that cannot be compared as such."""
        lasting, own, wholes, containers = [], list[dict[Any, Any]](), list[Table](), []
        fetched = []
        for kind, table in slots.class_tables:
            if self._is_bound or is_library_class(kind):
                lasting.append(table)
                own += get_referents(_own_of(kind, "__dict__"))
            else:
                fetched.append((kind, table))
        self._empty: list[Any] = []
        for item, title in slots.containers:
            parts, held = slots.snapshot.held(item)
            if type(item) in _BUILT_IN and not held and parts in (None, ((), ())):
                self._empty.append(item)
            elif held and shows_all(item) and all(is_new(x) or not can_change(x) for x in held):
                half = len(held) // 2
                wholes.append(Table(title, "[{!r}]", held[:half], held[half:], is_whole=True))
                own.append(item)
            else:
                containers.append((item, title))
        own += [item for item, _ in slots.dictionaries]
        tables = [table for _, table in (*slots.tables, *fetched)]
        tables += [*lasting, *wholes, *(table for _, table in slots.dictionaries)]
        self._classes = [self._reference(kind) for kind, _ in fetched]
        self._own = own

        def is_other(value: Any) -> bool:
            return can_change(value) if self._is_bound else _has_more(value, slots.snapshot)

        self._tables = Tables(tables, is_other, keeps_tuples=self._is_bound)
        return containers

    def _set_values(self, slots: Guarded, containers: list[tuple[Any, str]]) -> None:
        """Everything that is compared in each call."""
        self._containers = [container for container, _ in containers]
        self._cells = [cell for cell, _, _ in slots.cells]
        self._descriptors = [(number, descriptor) for number, descriptor, _ in slots.descriptors]
        self._functions = [function for function, _ in slots.functions]
        with_contents = {f: x for f, x in slots.asked.items() if _has_more(x, slots.snapshot)}
        plain = {f: x for f, x in slots.asked.items() if f not in with_contents}
        self._plainly_asked, self._answers = list(plain), list(plain.values())
        self._asked = list(with_contents)
        self._roots = [self._reference(root) for root in slots.roots]
        values = [
            *(value for value, _ in self._tables.others),
            *(value for _, _, value in slots.cells),
            *(value for _, _, value in slots.descriptors),
            *(part for _, parts in slots.functions for part in parts),
            *with_contents.values(),
            *slots.roots,
        ]
        self._labels = [
            *(label for _, label in self._tables.others),
            *(f"variable {name}" for _, name, _ in slots.cells),
            *(f"a {name_of(self._types[number])}'s {x.__name__}" for number, x, _ in slots.descriptors),
            *(f"{x.__qualname__}.{name}" for x, _ in slots.functions for name in FUNCTION_PARTS),
            *map(name_of_function, self._asked),
            *("an argument" for _ in slots.roots),
            *(title for _, title in containers),
        ]
        every = [container for container, _ in slots.containers]
        self._levels = levels_of(values, slots.snapshot, self._containers, every, keeps_tuples=self._is_bound)
        tensors = [] if self._is_bound else [tensor for level in self._levels for tensor in level.tensors]
        self.tensors, self._tensors = frozenset(map(id, tensors)), SameTensors(tensors) if tensors else None

    @property
    def is_alive(self) -> bool:
        """Whether it can hold again: nothing is gone whose identity it relies on."""
        return not self._dead

    @property
    def count(self) -> int:
        """How many values are looked at in each call."""
        return len(self._labels)

    def changed_numbers(self) -> list[ReadSlot]:
        """The slots that were read and hold other numbers now, of the same type."""
        return [] if self._slots is None or self._dead else self._slots.changed_numbers()

    def changed_tensors(self) -> list[ReadSlot]:
        """The slots that were read and hold other tensors now; also where those that they held are gone."""
        return [] if self._slots is None else self._slots.changed_tensors()

    def slots_of(self, tensors: Collection[int]) -> list[ReadSlot]:
        """The slots in which such tensors were found, themselves or in plain containers. tensors: by their ids."""
        return [] if self._slots is None else self._slots.of(tensors)

    def holds(self) -> bool:
        """Whether everything is as it was."""
        if self._dead:
            self._let_go()
            return False
        known = self._words  # other threads may ask as well
        if known is not None:
            words, tensors = known
            if words.are_as_before():
                return self._rest_is_as_before(tensors)
            self._words = None
        if self._changed_word is None or not self._is_time():
            return self._holds_one_by_one()
        found = self._in_words(self._changed_word)
        is_as_before = self._holds_one_by_one()
        if is_as_before and found is not None and found[0].are_as_before():
            self._words = found
        return is_as_before

    def _holds_one_by_one(self) -> bool:
        objects = self._objects_now()
        tables = self._tables_now(objects)
        if tables is None or not self._tables.are_as_before(tables) or any(self._empty):
            return False
        return self._answers_are() and self._values_are(objects, tables)

    def _answers_are(self) -> bool:
        asked = self._plainly_asked
        return not asked or all(map(is_same, self._answers, map(operator.call, asked)))

    def _values_are(self, objects: Sequence[Any], tables: Sequence[dict[Any, Any]]) -> bool:
        tensors: list[Any] = []
        met = self._met(objects, tables, tensors)
        is_so = met is not None and _count(met) == self._distinct  # else two that hold equal things have become one
        return is_so and (self._tensors is None or self._tensors.are(tensors))

    def _met(self, objects: Sequence[Any], tables: Sequence[dict[Any, Any]], tensors: list[Any]) -> list[Any] | None:
        """The containers that code can change, where all values are as expected; tensors are added to `tensors`."""
        met: list[Any] = [*self._own, *self._empty, *(objects if self._is_bound else ())]
        values: Sequence[Any] = self._values(objects, tables)
        for level in self._levels:
            below = level.look(values, tensors, met)
            if below is None:
                return None
            values = below
        return met

    def _distinct_now(self) -> int | None:
        """How many containers there are; None where values are other ones by now."""
        objects = self._objects_now()
        tables = self._tables_now(objects)
        met = None if tables is None else self._met(objects, tables, [])
        return None if met is None else _count(met)

    def _rest_is_as_before(self, tensors: Sequence[Callable[[], Any]] | None) -> bool:
        """Whether what words do not show is as it was. tensors: what gives those whose identity words show."""
        if not self._answers_are():
            return False
        if tensors is not None:
            return self._tensors is None or self._tensors.still_are(list(map(operator.call, tensors)))
        objects = self._objects_now()
        tables = self._tables_now(objects)
        return tables is not None and self._values_are(objects, tables)

    def _is_time(self) -> bool:
        """Whether words are put together: seldom where they never last."""
        self._waited += 1
        if self._waited < self._waits:
            return False
        self._waits, self._waited = min(2 * self._waits, _LONGEST_WAIT), 0
        return True

    def _in_words(self, changed_word: ChangedWord) -> _Words | None:
        """Words that show whether all is as expected, values apart where no words show these; None where none do."""
        objects = self._objects_now()
        tables = self._tables_now(objects)
        if tables is None:
            return None
        try:
            words = WordList()
            found = self._tables_in(words, objects)
        except NotInWords:
            return None
        self._tables.put_into(words, found)
        for item in self._empty:
            words.add_size(item, 0)
        count, tensors = words.count, None
        try:
            tensors = self._values_in(words, objects, tables)
        except NotInWords:
            words.forget_from(count)
        return words.made(changed_word, (words.new and self._met(objects, tables, [])) or ()), tensors

    def _tables_in(self, words: WordList, objects: Sequence[Any]) -> list[Callable[[], dict[Any, Any]]]:
        """Let words show the objects and which tables they have; gives what gives the tables. Raises: NotInWords."""
        for reference, item in zip(() if self._is_bound else self._objects, objects, strict=False):
            words.add_reference(reference, item)
        for item in objects:
            words.add_class(item)
        found = []
        for item in self._pick_with_table(objects):
            place = words.add_table(item, _dict_of(item, "__dict__"))
            found.append(partial(object_at, place))
        if self._is_bound:
            found.clear()  # which ones they are counts; what is in them is compared where they are found besides
        for reference in self._classes:
            kind = reference()
            words.add_reference(reference, kind)
            place = words.add_class_table(kind, get_referents(_own_of(kind, "__dict__"))[0])
            found.append(partial(object_at, place))
        return found + [_Strong(table) for table in self._own]

    def _values_in(
        self, words: WordList, objects: Sequence[Any], tables: Sequence[dict[Any, Any]]
    ) -> list[Callable[[], Any]]:
        """Let words show what is looked at in each call; gives what gives the tensors in it. Raises: NotInWords."""
        if self._asked:
            raise NotInWords
        values: Sequence[Any] = self._values(objects, tables)
        slots: list[Place] = [*self._tables.places(tables)]
        slots += words.slots_of_cells(self._cells)
        for number, descriptor in self._descriptors:
            slots.append(words.slot_of_member(objects[number], descriptor, in_slot(objects[number], descriptor)))
        slots += words.slots_of_functions(self._functions)
        slots += [words.add_reference(root, root()) for root in self._roots]
        slots += [None] * len(self._containers)
        tensors: list[Any] = []
        for level in self._levels:
            below = level.look(values, tensors, [])
            if below is None:
                raise NotInWords
            slots, values = level.put_into(words, values, slots), below
        return [self._kept.get(id(tensor)) or self._reference(tensor) for tensor in tensors]

    def known(self) -> frozenset[int]:
        """The identities of objects and containers that a program is bound to."""
        held = (self._objects, self._own, self._containers, self._empty) if self._is_bound else ()
        return frozenset(map(id, chain(*held)))

    def why(self) -> str:
        """What is not as it was; empty when everything is."""
        if self._dead:
            return "an object that it read is gone"
        objects = self._objects_now()
        tables = self._tables_now(objects)
        if tables is None:
            return "an object that it read has another class"
        found = self._tables.difference(tables)
        if found is not None:
            return told(*found)
        if any(self._empty):
            return "a container that was empty is not any more"
        for function, answer in zip(self._plainly_asked, self._answers, strict=True):
            now = function()
            if not is_same(answer, now):
                return told(name_of_function(function), answer, now)
        values: Sequence[Any] = self._values(objects, tables)
        for level in self._levels:
            different = level.difference(values)
            if different is not None:
                return told(self._labels[different[0]], *different[1:])
            values = level.look(values, [], []) or []
        return "" if self.holds() else "a tensor that it read is of another kind, or containers have become one object"

    def _objects_now(self) -> list[Any]:
        return self._objects if self._is_bound else list(map(operator.call, self._objects))

    def _tables_now(self, objects: Sequence[Any]) -> Sequence[dict[Any, Any]] | None:
        """The dictionaries; None where an object has another class, or another one than a program is bound to."""
        if list(map(type, objects)) != self._types:
            return None
        tables = list(map(_dict_of, self._pick_with_table(objects), repeat("__dict__")))
        if self._is_bound:
            return self._own if all(map(operator.is_, tables, self._bound_tables)) else None
        if self._classes:
            tables += get_referents(*map(_own_of, map(operator.call, self._classes), repeat("__dict__")))
        return tables + self._own

    def _values(self, objects: Sequence[Any], tables: Sequence[dict[Any, Any]]) -> list[Any]:
        """What is looked at in each call, as it is now."""
        found = [*self._tables.found(tables)]
        if self._cells:
            try:
                found += list(map(_cell_contents, self._cells))
            except ValueError:  # a variable without a value
                found += map(in_cell, self._cells)
        if self._descriptors:
            found += [in_slot(objects[number], descriptor) for number, descriptor in self._descriptors]
        if self._functions:
            found += chain.from_iterable(map(_function_parts, self._functions))
        if self._asked:
            found += map(operator.call, self._asked)
        if self._roots:
            found += map(operator.call, self._roots)
        return found + self._containers

    def _let_go(self) -> None:
        """It cannot hold any more: keep nothing alive."""
        self._objects, self._types, self._bound_tables, self._own = [], [], [], []
        self._cells, self._containers, self._empty, self._levels, self._kept = [], [], [], [], {}
        self._words = None

    def _reference(self, item: Any) -> Callable[[], Any]:
        try:
            return weakref.ref(item, self._dead.append)
        except TypeError:
            return _Strong(item)


class _Strong:
    __slots__ = ("_item",)

    def __init__(self, item: Any) -> None:
        self._item = item

    def __call__(self) -> Any:
        return self._item


def _count(items: Iterable[Any]) -> int:
    """How many objects these are."""
    return len(set(map(id, items)))


def _has_more(value: Any, snapshot: Snapshot) -> bool:
    """Whether there is more to a value than which one it is: what it holds, or what a tensor is like."""
    return snapshot.has(value) or is_a(value, torch.Tensor)
