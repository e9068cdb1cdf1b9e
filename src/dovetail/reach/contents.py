"""What containers hold, and what they held when they were met first; when a value is as good as another one."""

from __future__ import annotations

import ctypes
import io
import threading
import weakref
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator
from contextvars import Context, ContextVar
from datetime import date, time, timedelta
from decimal import Decimal
from fractions import Fraction
from functools import cached_property, lru_cache, partial, partialmethod, singledispatchmethod
from gc import get_referents
from mmap import mmap
from multiprocessing.shared_memory import ShareableList
from operator import methodcaller
from pathlib import PurePath
from reprlib import Repr
from string import Template
from textwrap import TextWrapper
from types import (
    BuiltinMethodType,
    CellType,
    FunctionType,
    MappingProxyType,
    MethodType,
    MethodWrapperType,
    ModuleType,
    NoneType,
    SimpleNamespace,
)
from typing import Any, TypeAlias
from uuid import UUID

import numpy as np
import torch

from dovetail.reach.libraries import is_library_class, is_users_function
from dovetail.reach.values import PLAIN, attributes_of, holds_more, is_a, is_same, plain_key, referent_of

MISSING: Any = type("_Missing", (), {"__repr__": lambda _: "<nothing>"})()
_CACHED: Any = type(lru_cache(len))
_OF_CTYPES: Any = ctypes.c_int.__mro__[2]  # what all its classes of data derive from
_VIEWS: Any = (type({}.keys()), type({}.values()), type({}.items()))
_OF_ATTRIBUTES = (partialmethod, cached_property, singledispatchmethod, Template, TextWrapper, Repr)
_BY_EQUALITY = (Decimal, Fraction, date, time, timedelta, PurePath, UUID)

Parts: TypeAlias = tuple[Hashable, tuple[Any, ...]]


def in_cell(cell: Any) -> Any:
    """What a closure cell holds."""
    try:
        return cell.cell_contents
    except ValueError:  # a variable without a value
        return MISSING


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


def _of_ctypes(item: Any) -> Parts:
    """The bytes, and what they keep alive: what pointers point to."""
    held = tuple(x for x in get_referents(item) if not is_a(x, type))
    return ctypes.string_at(ctypes.addressof(item), ctypes.sizeof(item)), held


def _of_set(item: Any) -> Parts:
    base: Any = set if is_a(item, set) else frozenset
    elements = tuple(base.__iter__(item))  # in order: equal sets may give theirs in other ones
    return tuple(map(_element, elements)), tuple(x for x in elements if not is_plain(x))


def _of_function(function: Any) -> Parts:
    return id(function), (function.__code__, function.__defaults__, function.__kwdefaults__, function.__dict__)


def _element(item: Any) -> Hashable:
    if is_plain(item):
        return plain_key(item)
    return tuple(map(_element, item)) if type(item) is tuple else id(item)


def is_plain(item: Any) -> bool:
    return type(item) in PLAIN or is_a(item, np.generic)


# What may change inside a value, by its class: something that is compared for equality, and values that are compared.
_PARTS: tuple[tuple[Any, Callable[[Any], Parts]], ...] = (
    (FunctionType, _of_function),
    (MethodType, lambda x: (None, (x.__func__, x.__self__))),
    (partial, lambda x: (None, (x.func, x.args, x.keywords, x.__dict__))),
    (
        _OF_ATTRIBUTES,
        lambda x: (None, (attributes_of(x),)),
    ),
    (slice, lambda x: (None, (x.start, x.stop, x.step))),
    ((staticmethod, classmethod), lambda x: (None, (x.__func__,))),
    (property, lambda x: (None, (x.fget, x.fset, x.fdel))),
    ((weakref.ref, *weakref.ProxyTypes), lambda x: (None, (referent_of(x),))),
    ((BuiltinMethodType, MethodWrapperType), lambda x: (x.__name__, (x.__self__,))),
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
    (CellType, lambda x: (None, (in_cell(x),))),
    (Context, lambda x: (None, (*x.keys(), *x.values()))),
    (methodcaller, lambda x: (None, x.__reduce__())),
    (_OF_CTYPES, _of_ctypes),
    (mmap, lambda x: (None if x.closed else x[:], ())),
    (weakref.WeakSet, lambda x: (None, (x.data,))),
    (weakref.finalize, lambda x: (x.alive, ())),
    (ShareableList, lambda x: (None if x.shm.buf is None else bytes(x.shm.buf), ())),
    (torch.UntypedStorage, lambda x: (x.nbytes(), ())),
)
_SEQUENCES: tuple[Any, ...] = (list, tuple, deque)


def _never_changes(item: Any) -> bool:
    if is_a(item, FunctionType):
        return not is_users_function(item)
    return is_a(item, BuiltinMethodType) and is_a(item.__self__, (ModuleType, type, NoneType))


def parts_of(item: Any) -> Callable[[Any], Parts] | None:
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
        parts = parts_of(item) if not is_plain(item) else None
        return [] if parts is None else list(parts(item)[1])
    if base is dict or base is OrderedDict:
        return [*base.keys(item), *base.values(item)]
    return list(base.__iter__(item))


def is_compared_by_contents(item: Any) -> bool:
    """Whether what a value holds counts, and not only its identity."""
    return base_of(item) is not None or (not is_plain(item) and parts_of(item) is not None)


class Snapshot:
    """What containers held when they were met first."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[Any, Parts | None, list[Any]]] = {}
        self._elements: dict[int, list[Any]] = {}
        self._entries: dict[int, dict[str, Any]] = {}

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

    def expect(self, item: Any, held: list[Any]) -> None:
        """Note that a container is to hold something, which may be less exact than what it holds."""
        self._held[id(item)] = (item, _tag_and_contents(item)[0], held)

    def held(self, item: Any) -> tuple[Parts | None, list[Any]]:
        """What it held."""
        _, tag, held = self._held[id(item)]
        return tag, held

    def entries(self, item: dict[Any, Any]) -> dict[str, Any]:
        """What a dictionary held by names; code may have changed it since it was met."""
        if id(item) not in self._held:
            return item
        if id(item) not in self._entries:
            held = self._held[id(item)][2]
            keys, values = held[: len(held) // 2], held[len(held) // 2 :]
            self._entries[id(item)] = {key: x for key, x in zip(keys, values, strict=True) if type(key) is str}
        return self._entries[id(item)]

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
    parts = parts_of(item)
    tag = parts(item) if parts is not None else None
    return tag, [] if tag is None else list(tag[1])


def counts_by_value(item: Any) -> bool:
    """Whether another value that is equal is as good as this one; tuples are, by their parts."""
    if is_plain(item):
        return True
    if not is_a(item, (*_BY_EQUALITY, tuple)) or holds_more(item):
        return False
    return not is_a(item, tuple) or all(map(counts_by_value, tuple.__iter__(item)))


def is_equal(expected: Any, now: Any) -> bool:
    """Whether code cannot tell a value from one that was expected, but by identity."""
    if is_same(expected, now):
        return True
    if type(expected) is not type(now) or holds_more(now):
        return False
    if is_a(now, tuple):
        return tuple.__len__(expected) == tuple.__len__(now) and all(
            map(is_equal, tuple.__iter__(expected), tuple.__iter__(now))
        )
    if not is_a(now, _BY_EQUALITY):
        return False
    return bool(expected == now) and repr(expected) == repr(now)


def value_key(item: Any) -> Hashable:
    """A key of a value: plain ones and tuples of such count by value, methods by their parts, others by identity."""
    if type(item) in (float, complex):
        return (type(item), repr(item))  # which people read
    if is_plain(item):
        return plain_key(item)
    if _is_equal_by_text(item):
        return (type(item), repr(item))
    if type(item) in (tuple, torch.Size, frozenset, set, slice):
        parts = (item.start, item.stop, item.step) if type(item) is slice else item
        keys = map(value_key, parts)
        return (type(item), tuple(keys))  # of sets as well: code may go through them, in their order
    if type(item) is MethodType:
        return (MethodType, id(item.__self__), id(item.__func__))
    return (type(item), id(item))


def identified(item: Any) -> list[Any]:
    """The objects that `value_key` knows by identity."""
    if is_plain(item) or _is_equal_by_text(item) or type(item) is slice:
        return []
    if type(item) in (tuple, torch.Size, frozenset, set):
        return [part for each in item for part in identified(each)]
    return [item.__self__, item.__func__] if type(item) is MethodType else [item]


def _is_equal_by_text(item: Any) -> bool:
    """Whether an object is as good as any other one of its class that reads the same: a fraction, a date, a path."""
    return is_a(item, _BY_EQUALITY) and is_library_class(type(item))
