"""Values compared level by level: a guard asks built-in iterators about thousands of them at once.

A level holds values side by side: plain ones, which count by value, containers, which count by what they hold, and
other objects, of which only the identity counts. What the containers of one level hold is the next level. A level is
usually one comparison of identities; only where an identity differs are values compared one by one.
"""

from __future__ import annotations

import io
import threading
import weakref
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextvars import ContextVar
from datetime import date, time, timedelta
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache, partial
from gc import get_referents
from itertools import chain
from operator import itemgetter
from pathlib import PurePath
from types import BuiltinMethodType, FunctionType, MappingProxyType, MethodType, ModuleType, NoneType, SimpleNamespace
from typing import Any, TypeAlias
from uuid import UUID

import numpy as np
import torch

from dovetail.ir.provenance import is_library_file
from dovetail.reach.libraries import is_library_class
from dovetail.reach.values import PLAIN, is_a, is_same, plain_key, referent_of
from dovetail.torch_compat.fakes import is_fake

MISSING: Any = type("_Missing", (), {"__repr__": lambda _: "nothing"})()
_CACHED: Any = type(lru_cache(len))
_VIEWS: Any = (type({}.keys()), type({}.values()), type({}.items()))
_BY_EQUALITY = (Decimal, Fraction, date, time, timedelta, PurePath, UUID)
_OTHER = object()

Parts: TypeAlias = tuple[Hashable, tuple[Any, ...]]


def _of_cache(function: Any) -> Parts:
    """What a function remembers (arguments, then results), and the function.

    A table with a bound maps arguments to links, which do not show what they hold; the collector does.
    """
    found = get_referents(function)
    table = next(x for x in found if type(x) is dict and x is not function.__dict__)
    link = next((type(x) for x in table.values() if type(x).__name__ == "_lru_list_elem"), None)
    if link is None:
        results = list(table.values())
    else:
        held = {id(key): result for key, result, kind in zip(found, found[1:], found[2:], strict=False) if kind is link}
        results = [held[id(key)] for key in table]
    return len(results), (function.__wrapped__, *table, *results)


def _of_array(item: Any) -> Parts:
    if is_a(item, np.ndarray):
        head = (item.shape, item.strides, item.dtype.str)
        return (*head, None if item.dtype.hasobject else item.tobytes()), tuple(
            item.flat
        ) if item.dtype.hasobject else ()
    return bytes(item), ()


def _of_set(item: Any) -> Parts:
    return frozenset(map(_element, item)), ()


def _of_function(function: Any) -> Parts:
    return id(function), (function.__code__, function.__defaults__, function.__kwdefaults__, function.__dict__)


def _element(item: Any) -> Hashable:
    if _is_plain(item):
        return plain_key(item)
    return tuple(map(_element, item)) if type(item) is tuple else id(item)


def _is_plain(item: Any) -> bool:
    return type(item) in PLAIN or is_a(item, np.generic)


# What may change inside a value, by its class: something that is compared for equality, and values that are compared.
_PARTS: tuple[tuple[Any, Callable[[Any], Parts]], ...] = (
    (FunctionType, _of_function),
    (MethodType, lambda x: (None, (x.__func__, x.__self__))),
    (partial, lambda x: (None, (x.func, x.args, x.keywords, x.__dict__))),
    (slice, lambda x: (None, (x.start, x.stop, x.step))),
    ((staticmethod, classmethod), lambda x: (None, (x.__func__,))),
    (property, lambda x: (None, (x.fget, x.fset, x.fdel))),
    ((weakref.ref, *weakref.ProxyTypes), lambda x: (None, (referent_of(x),))),
    (BuiltinMethodType, lambda x: (x.__name__, (x.__self__,))),
    (MappingProxyType, lambda x: (None, (dict(x),))),
    (_VIEWS, lambda x: (None, (list(x),))),
    (SimpleNamespace, lambda x: (None, (x.__dict__,))),
    (ContextVar, lambda x: (None, (x.get(MISSING),))),
    (_CACHED, _of_cache),
    ((np.ndarray, bytearray, array, memoryview), _of_array),
    ((set, frozenset), _of_set),
    ((io.StringIO, io.BytesIO), lambda x: ((x.tell(), x.getvalue()) if not x.closed else None, ())),
    (BaseException, lambda x: (None, (x.args, x.__dict__))),
    (threading.local, lambda x: (None, (x.__dict__,))),
)
_SEQUENCES: tuple[Any, ...] = (list, tuple, deque)


def _never_changes(item: Any) -> bool:
    if is_a(item, FunctionType):
        return is_library_file(item.__code__.co_filename)
    return is_a(item, BuiltinMethodType) and is_a(item.__self__, (ModuleType, type, NoneType))


def _parts_of(item: Any) -> Callable[[Any], Parts] | None:
    for family, parts in _PARTS:
        if is_a(item, family):
            return None if _never_changes(item) else parts
    return None


def base_of(item: Any) -> Any:
    """The built-in class whose methods show what a container holds; None for what is none."""
    kind = type(item)
    if issubclass(kind, dict):
        return OrderedDict if issubclass(kind, OrderedDict) else dict
    return next((base for base in _SEQUENCES if issubclass(kind, base)), None) if kind is not torch.Size else None


def contents_of(item: Any) -> list[Any]:
    """What a value holds, in the order in which a level compares it; nothing where only its identity counts."""
    base = base_of(item)
    if base is None:
        parts = _parts_of(item) if not _is_plain(item) else None
        return [] if parts is None else list(parts(item)[1])
    if base is dict or base is OrderedDict:
        return [*base.keys(item), *base.values(item)]
    return list(base.__iter__(item))


def is_compared_by_contents(item: Any) -> bool:
    """Whether what a value holds counts, and not only its identity."""
    return base_of(item) is not None or (not _is_plain(item) and _parts_of(item) is not None)


class Snapshot:
    """What containers held when they were met first."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[Any, Parts | None, list[Any]]] = {}
        self._elements: dict[int, list[Any]] = {}

    def __iter__(self) -> Iterator[Any]:
        """The containers."""
        return (item for item, _, _ in list(self._held.values()))

    def has(self, item: Any) -> bool:
        """Whether a container was met."""
        return id(item) in self._held

    def take(self, item: Any) -> list[Any]:
        """Note what a container holds now."""
        tag, held = _tag_and_contents(item)
        self._held[id(item)] = (item, tag, held)
        if is_a(item, set):
            self._elements[id(item)] = list(set.__iter__(item))
        return held

    def held(self, item: Any) -> tuple[Parts | None, list[Any]]:
        """What it held."""
        _, tag, held = self._held[id(item)]
        return tag, held

    def elements(self, item: set[Any]) -> list[Any]:
        """What a set held."""
        return self._elements[id(item)]

    def is_as_before(self, item: Any) -> bool:
        """Whether a container holds what it held."""
        tag, held = self.held(item)
        now_tag, now = _tag_and_contents(item)
        if len(now) != len(held) or (tag is None) != (now_tag is None):
            return False
        return (tag is None or now_tag is None or tag[0] == now_tag[0]) and all(map(is_same, held, now))


def _tag_and_contents(item: Any) -> tuple[Parts | None, list[Any]]:
    if base_of(item) is not None:
        return None, contents_of(item)
    parts = _parts_of(item)
    tag = parts(item) if parts is not None else None
    return tag, [] if tag is None else list(tag[1])


class _Group:
    """Containers of one kind among the values of a level."""

    def __init__(self, base: Any, places: Sequence[int], containers: Sequence[Any], snapshot: Snapshot) -> None:
        self.base = base
        self.places = places
        self.pick = picker(places)
        self.types = list(map(type, containers))
        held = [snapshot.held(item) for item in containers]
        self.counts = [len(items) for _, items in held]
        self.tags = [tag[0] for tag, _ in held if tag is not None]
        self._parts = [_parts_of(item) for item in containers] if base is None else []
        self.is_table = base is dict or base is OrderedDict
        self._is_empty = set(self.types) == {base} and not any(self.counts)

    def look(self, found: Sequence[Any]) -> list[Any] | None:
        """What the containers hold now; None where that is not as many things of the same kinds."""
        base = self.base
        if list(map(type, found)) != self.types:
            return None
        if base is None:
            parts = [look(item) for look, item in zip(self._parts, found, strict=True) if look is not None]
            if [tag for tag, _ in parts] != self.tags or [len(items) for _, items in parts] != self.counts:
                return None
            return list(chain.from_iterable(items for _, items in parts))
        if self._is_empty:
            return None if any(found) else []
        if self.is_table:
            if [2 * n for n in map(base.__len__, found)] != self.counts:
                return None
            return [*chain.from_iterable(map(base.keys, found)), *chain.from_iterable(map(base.values, found))]
        if list(map(base.__len__, found)) != self.counts:
            return None
        return list(chain.from_iterable(map(base.__iter__, found)))

    def before(self, containers: Sequence[Any], snapshot: Snapshot) -> Iterator[tuple[int, Any]]:
        """What the containers held, each with the place of its container, in the order of `look`."""
        held = [(place, snapshot.held(item)[1]) for place, item in zip(self.places, containers, strict=True)]
        if self.is_table:
            yield from ((place, x) for place, items in held for x in items[: len(items) // 2])
            yield from ((place, x) for place, items in held for x in items[len(items) // 2 :])
        else:
            yield from ((place, x) for place, items in held for x in items)


class Level:
    """Values side by side; see the module docstring.

    Of what only counts by identity, nothing is to be kept alive: whoever makes a level watches `watched`, and then lets
    it go (`forget`).
    """

    def __init__(self, values: Sequence[Any], roots: Sequence[int], snapshot: Snapshot, seen: set[int]) -> None:
        """Expect these. roots: the number of what leads to each. seen: containers that are compared elsewhere."""
        groups: dict[Any, list[int]] = {}
        leaves: list[int] = []
        for place, value in enumerate(values):
            if is_a(value, torch.Tensor) and is_fake(value):
                continue  # it stands for an input of the program, which is looked at as such
            if snapshot.has(value) and id(value) not in seen:
                seen.add(id(value))
                groups.setdefault(base_of(value), []).append(place)
            else:
                leaves.append(place)
        expected = [values[place] for place in leaves]
        self._roots = list(roots)
        self._places = leaves
        self._is_flat = len(leaves) == len(values)
        self._pick = picker(leaves)
        self._ids = list(map(id, expected))
        self._expected = [x if _is_plain(x) or is_a(x, _BY_EQUALITY) else _OTHER for x in expected]
        self._tensors = [n for n, x in enumerate(expected) if is_a(x, torch.Tensor)]
        self.tensors = [expected[n] for n in self._tensors]
        self._groups = [_Group(base, at, [values[p] for p in at], snapshot) for base, at in groups.items()]
        elements = [x for at in groups.values() for p in at if is_a(values[p], (set, frozenset)) for x in values[p]]
        functions = [values[p] for at in groups.values() for p in at if is_a(values[p], FunctionType)]
        self.watched = [x for x in (*expected, *elements, *functions) if not _is_plain(x)]
        self.below = [
            (roots[place], held)
            for group in self._groups
            for place, held in group.before([values[p] for p in group.places], snapshot)
        ]

    def forget(self) -> None:
        """Keep no object alive any more that is compared by identity."""
        self.watched, self.tensors, self.below = [], [], []

    def look(self, values: Sequence[Any], tensors: list[Any]) -> list[Any] | None:
        """What the containers among values hold, if all are as expected; else None.

        tensors: gets those among the values, whose sizes and the like are for others to judge.
        """
        leaves = values if self._is_flat else self._pick(values)
        if list(map(id, leaves)) != self._ids and not self._are_same(leaves):
            return None
        if self._tensors:
            tensors += [leaves[n] for n in self._tensors]
        below: list[Any] = []
        for group in self._groups:
            held = group.look(group.pick(values))
            if held is None:
                return None
            below += held
        return below

    def difference(self, values: Sequence[Any]) -> tuple[int, Any, Any] | None:
        """The number of what leads to the first value that is not as expected, what was expected, and the value."""
        for n, place in enumerate(self._places):
            if id(values[place]) != self._ids[n] and not _is_equal(self._expected[n], values[place]):
                return self._roots[place], MISSING if self._expected[n] is _OTHER else self._expected[n], values[place]
        for group in self._groups:
            if group.look(group.pick(values)) is None:
                return self._roots[group.places[0]], MISSING, MISSING
        return None

    def _are_same(self, leaves: Sequence[Any]) -> bool:
        ids = self._ids
        changed = [n for n, leaf in enumerate(leaves) if id(leaf) != ids[n]]
        if not all(_is_equal(self._expected[n], leaves[n]) for n in changed):
            return False
        for n in changed:
            self._expected[n] = leaves[n]
            ids[n] = id(leaves[n])
        return True


def levels_of(values: Sequence[Any], snapshot: Snapshot) -> list[Level]:
    """The levels of values, the first for the values themselves."""
    levels, seen = list[Level](), set[int]()
    below = list(enumerate(values))
    while below:
        level = Level([x for _, x in below], [root for root, _ in below], snapshot, seen)
        levels.append(level)
        below = level.below
    return levels


def _is_equal(expected: Any, now: Any) -> bool:
    """Whether code cannot tell a value from one that was expected, but by identity."""
    if is_same(expected, now):
        return True
    if type(expected) is not type(now) or not is_a(now, _BY_EQUALITY):
        return False
    return bool(expected == now) and repr(expected) == repr(now)


def value_key(item: Any) -> Hashable:
    """A key of a value: plain ones and tuples of such count by value, methods by their parts, others by identity."""
    if type(item) in (float, complex):
        return (type(item), repr(item))  # which people read
    if _is_plain(item):
        return plain_key(item)
    if _is_equal_by_text(item):
        return (type(item), repr(item))
    if type(item) in (tuple, torch.Size, frozenset, set, slice):
        parts = (item.start, item.stop, item.step) if type(item) is slice else item
        keys = map(value_key, parts)
        return (type(item), frozenset(keys) if is_a(item, (set, frozenset)) else tuple(keys))
    if type(item) is MethodType:
        return (MethodType, id(item.__self__), id(item.__func__))
    return (type(item), id(item))


def identified(item: Any) -> list[Any]:
    """The objects that `value_key` knows by identity."""
    if _is_plain(item) or _is_equal_by_text(item) or type(item) is slice:
        return []
    if type(item) in (tuple, torch.Size, frozenset, set):
        return [part for each in item for part in identified(each)]
    return [item.__self__, item.__func__] if type(item) is MethodType else [item]


def _is_equal_by_text(item: Any) -> bool:
    """Whether an object is as good as any other one of its class that reads the same: a fraction, a date, a path."""
    return is_a(item, _BY_EQUALITY) and is_library_class(type(item))


def picker(places: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """A function that takes items at places out of a sequence."""
    if len(places) > 1:
        return itemgetter(*places)
    return lambda items: [items[place] for place in places]
