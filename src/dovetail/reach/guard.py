"""Whether what a recorded call read is as it was: a guard over the places that were read, and nothing else.

Nothing of the user's is kept alive by a guard but plain values, containers of them on the way, and what cannot be
referred to weakly. When something dies whose identity it relies on, it does not hold any more.

Cost of a check: about 0.1 us for each object, 0.05 us for each place and each item of a container that was read.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from gc import get_referents  # of a class's `__dict__`: the dictionary behind it
from itertools import repeat
from typing import Any

import torch

from dovetail.reach.contents import MISSING, Level, Snapshot, levels_of, picker
from dovetail.reach.known import without
from dovetail.reach.reads import Reads
from dovetail.reach.spots import NamesOf, in_cell, in_slot
from dovetail.reach.values import PLAIN, has_attributes, name_of
from dovetail.torch_compat.guards import SameTensors, version_of_dict

_cell_contents = operator.attrgetter("cell_contents")
_dict_of: Any = object.__getattribute__
_own_of: Any = type.__getattribute__


class ReadGuard:
    """What was read in one recording; see the module docstring."""

    def __init__(self, reads: Reads, is_private: Callable[[Any], bool], known: AbstractSet[tuple[int, str]]) -> None:
        """Guard places with the values that they had before.

        is_private: whether an object was made by the call. known: see `dovetail.reach.known.without`.
        """
        self._dead: list[Any] = []  # references to what is gone
        reads = without(reads, known)
        self._kept: list[Any] = []
        owners = [x for x in reads.owners.values() if not is_private(x) and not isinstance(x, type)]
        number_of = {id(owner): n for n, owner in enumerate(owners)}
        self._owners = [self._reference(owner) for owner in owners]
        self._types = list(map(type, owners))
        with_dict = [n for n, owner in enumerate(owners) if has_attributes(type(owner))]
        dict_of = {n: place for place, n in enumerate(with_dict)}
        self._pick_with_dict = picker(with_dict)
        self._attributes = _Entries(
            [
                (dict_of[number_of[key]], name, value)
                for (key, name), value in reads.attributes.items()
                if key in number_of and number_of[key] in dict_of
            ],
            [f"{name_of(self._types[n])}" for n in with_dict],
            reads.snapshot,
        )
        of_classes = {key: place for key, place in reads.class_attributes.items() if not is_private(place[0])}
        classes = {key: owner for (key, _), (owner, _) in of_classes.items()}
        class_number = {key: n for n, key in enumerate(classes)}
        self._classes = [self._reference(owner) for owner in classes.values()]
        self._class_attributes = _Entries(
            [(class_number[key], name, value) for (key, name), (_, value) in of_classes.items()],
            [name_of(owner) for owner in classes.values()],
            reads.snapshot,
        )
        spaces = [(key, place) for key, place in reads.namespaces.items() if not is_private(place[0])]
        self._spaces = [known for _, (known, _) in spaces]
        self._space_names = [name for (_, name), _ in spaces]
        self._cells = [cell for cell, _, _ in reads.cells.values()]
        slots = [(n, d, v) for (key, _), (_, d, v) in reads.slots.items() if (n := number_of.get(key)) is not None]
        self._slots = [(number, descriptor) for number, descriptor, _ in slots]
        asked = {f: answer for f, answer in reads.asked.items() if not (isinstance(f, NamesOf) and is_private(f.item))}
        self._asked = list(asked)
        roots = [root for root in reads.roots if not is_private(root)]
        self._roots = [self._reference(root) for root in roots]
        values = [
            *self._attributes.containers,
            *self._class_attributes.containers,
            *(value for _, (_, value) in spaces),
            *(value for _, _, value in reads.cells.values()),
            *(value for _, _, value in slots),
            *asked.values(),
            *roots,
        ]
        self._labels = [
            *self._attributes.container_labels,
            *self._class_attributes.container_labels,
            *(f"{label}.{name}".lstrip(".") for (key, name), _ in spaces for label in (reads.labels[key],)),
            *(f"variable {name}" for _, name, _ in reads.cells.values()),
            *(f"a {name_of(self._types[number])}'s {descriptor.__name__}" for number, descriptor, _ in slots),
            *(getattr(function, "__qualname__", str(function)) for function in self._asked),
            *("an argument" for _ in roots),
        ]
        self._levels: list[Level] = levels_of(values, reads.snapshot)
        levels = [*self._levels, self._attributes.level, self._class_attributes.level]
        tensors = [tensor for level in levels for tensor in level.tensors]
        self._tensors = SameTensors(tensors) if tensors else None
        for level in levels:
            for item in level.watched:
                self._watch(item)
            level.forget()

    @property
    def is_alive(self) -> bool:
        """Whether it can hold again: nothing is gone whose identity it relies on."""
        return not self._dead

    @property
    def count(self) -> int:
        """How many places are looked at."""
        return len(self._labels)

    def holds(self) -> bool:
        """Whether everything that was read is as it was."""
        tensors: list[Any] = []
        if self._dead:
            self._spaces, self._cells, self._kept, self._levels = [], [], [], []
            return False
        if not self._holds(tensors):
            return False
        return self._tensors is None or self._tensors.are(tensors)

    def why(self) -> str:
        """What is not as it was; empty when everything is."""
        if not self.is_alive:
            return "an object that it read is gone"
        values = self._values()
        if values is None:
            why = self._attributes.why or self._class_attributes.why
            return why or "an object that it read has another class"
        for level in self._levels:
            found = level.difference(values)
            if found is not None:
                return _told(self._labels[found[0]], *found[1:])
            values = level.look(values, []) or []
        return "" if self.holds() else "a tensor that it read is of another kind"

    def _holds(self, tensors: list[Any]) -> bool:
        values: Sequence[Any] | None = self._values()
        if values is None:
            return False
        for level in self._levels:
            values = level.look(values, tensors)
            if values is None:
                return False
        return True

    def _values(self) -> list[Any] | None:
        """What the places hold now; None where an object has another class, or an attribute of it is another one."""
        owners = list(map(operator.call, self._owners))
        if list(map(type, owners)) != self._types:
            return None
        dicts = list(map(_dict_of, self._pick_with_dict(owners), repeat("__dict__")))
        of_classes = get_referents(*map(_own_of, map(operator.call, self._classes), repeat("__dict__")))
        if not self._attributes.are_as_before(dicts) or not self._class_attributes.are_as_before(of_classes):
            return None
        found = [*self._attributes.found(dicts), *self._class_attributes.found(of_classes)]
        found += map(dict.get, self._spaces, self._space_names, repeat(MISSING))
        before = len(found)
        try:
            found += map(_cell_contents, self._cells)
        except ValueError:  # a variable without a value
            del found[before:]
            found += map(in_cell, self._cells)
        found += [in_slot(owners[number], descriptor) for number, descriptor in self._slots]
        found += [function() for function in self._asked]
        found += map(operator.call, self._roots)
        return found

    def _watch(self, item: Any) -> None:
        self._kept.append(self._reference(item))

    def _reference(self, item: Any) -> Callable[[], Any]:
        try:
            return weakref.ref(item, self._dead.append)
        except TypeError:
            return _Strong(item)


class _Entries:
    """Entries of the `__dict__` of objects, or of classes.

    Of most of them only the value counts. They need not be looked at while the dictionaries are as they were in the
    last call, which takes one question for each. Containers and tensors are looked at in each call.
    """

    def __init__(self, places: Sequence[tuple[int, str, Any]], kinds: Sequence[str], snapshot: Snapshot) -> None:
        """places: the number of the dictionary, the name, the value. kinds: what to call whose dictionary it is."""
        lasting = [place for place in places if not (snapshot.has(place[2]) or isinstance(place[2], torch.Tensor))]
        others = [place for place in places if snapshot.has(place[2]) or isinstance(place[2], torch.Tensor)]
        self._labels = [f"{kinds[number]}.{name}" for number, name, _ in lasting]
        self._pick, self._names = picker([number for number, _, _ in lasting]), [name for _, name, _ in lasting]
        self._pick_others = picker([number for number, _, _ in others])
        self._other_names = [name for _, name, _ in others]
        self._versions: list[int] = []
        self.level = Level([value for _, _, value in lasting], range(len(lasting)), snapshot, set())
        self.containers = [value for _, _, value in others]
        self.container_labels = [f"{kinds[number]}.{name}" for number, name, _ in others]
        self.why = ""

    def are_as_before(self, dicts: Sequence[dict[str, Any]]) -> bool:
        """Whether those that only count by value are as before; `why` says what is not."""
        self.why = ""
        versions = [] if version_of_dict is None else list(map(version_of_dict, dicts))
        if versions and versions == self._versions:
            return True
        values = list(map(dict.get, self._pick(dicts), self._names, repeat(MISSING)))
        if self.level.look(values, []) is None:
            different = self.level.difference(values)
            self.why = "" if different is None else _told(self._labels[different[0]], *different[1:])
            return False
        self._versions = versions
        return True

    def found(self, dicts: Sequence[dict[str, Any]]) -> list[Any]:
        """What the others are now."""
        return list(map(dict.get, self._pick_others(dicts), self._other_names, repeat(MISSING)))


class ReadGuards:
    """The guards of one program: of its recording, and of what was recorded of it later."""

    def __init__(self) -> None:
        self.guards: list[ReadGuard] = []

    def add(self, guard: ReadGuard) -> None:
        """Something more was recorded."""
        self.guards.append(guard)

    def holds(self) -> bool:
        """Whether everything that was read is as it was."""
        return all(guard.holds() for guard in self.guards)

    def why(self) -> str:
        """What is not as it was; empty when everything is."""
        return next((reason for guard in self.guards if (reason := guard.why())), "")

    @property
    def is_alive(self) -> bool:
        """Whether these can hold again."""
        return all(guard.is_alive for guard in self.guards)


class _Strong:
    __slots__ = ("_item",)

    def __init__(self, item: Any) -> None:
        self._item = item

    def __call__(self) -> Any:
        return self._item


def _told(label: str, old: Any, new: Any) -> str:
    told = "" if old is MISSING or type(old) not in PLAIN else f": {_short(old)} -> {_short(new)}"
    return f"{label} changed{told}"


def _short(value: Any) -> str:
    text = repr(value) if type(value) in PLAIN else f"a {name_of(type(value))}"
    return text if len(text) <= 60 else f"{text[:57]}..."
