"""What kind of thing a Python value is, and when two plain values are the same to code that reads them.

Nothing here runs code of the user's: a value is judged by its type, and only values of built-in types, and numbers and
arrays of NumPy, are compared by what they hold.
"""

from __future__ import annotations

import argparse
import configparser
import io
import itertools
import random
import struct
import sys
import threading
import weakref
from array import array
from collections import ChainMap, OrderedDict, UserDict, UserList, defaultdict, deque
from collections.abc import Hashable, Mapping
from contextvars import Context, ContextVar
from enum import Enum, auto
from functools import lru_cache, partial
from operator import methodcaller
from queue import Queue, SimpleQueue
from types import (
    BuiltinMethodType,
    CellType,
    FunctionType,
    MappingProxyType,
    MemberDescriptorType,
    MethodType,
    MethodWrapperType,
    ModuleType,
    SimpleNamespace,
)
from typing import Any

import numpy as np
import torch
from torch.amp.grad_scaler import GradScaler
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from dovetail.reach.libraries import FOLLOWED_PACKAGES, is_library_class

_EXACT = (bool, int, str, bytes, type(None), torch.dtype, torch.device)
PLAIN = frozenset((*_EXACT, float, complex, range))
HOST_CALL = "_dovetail_host_call"  # an attribute of functions that are called after the program
COMPILED_FROM = "_dovetail_compiled_from"  # an attribute of classes of ours: names the attribute with what was compiled
MAX_WATCHED_BYTES = 1024
_HEAP_TYPE = 1 << 9
LOOKED_FOR = ("__getattr__", "__bool__", "__len__", "__eq__", "__contains__", "__iter__", "__getitem__", "__call__")
"""What Python looks for in the class of an object by itself, and does without where it is missing."""
REPORTING = ("__getattribute__", "__setattr__", "__delattr__")
"""Methods that report what is read and written, in the classes that are watched while a call is recorded."""
_NEVER_COMPARED = frozenset(("__init__", "__new__", "__repr__", "__init_subclass__", "__set_name__", *REPORTING))
ATTRIBUTES_ALONE = frozenset((object, SimpleNamespace))
"""Classes of C whose objects hold nothing but attributes."""
RANDOM_SOURCES = (random.Random, np.random.Generator, np.random.RandomState)
_WALKED_PACKAGES = ("torch.distributions", "torch.nn", "torch.optim", "torch.amp", *FOLLOWED_PACKAGES)
_WALKED = (
    *(SimpleNamespace, argparse.Namespace, UserDict, UserList, ChainMap, Queue),
    *(configparser.RawConfigParser, configparser.SectionProxy),
)
_CLOSED = (
    *(MappingProxyType, memoryview, weakref.WeakKeyDictionary, weakref.WeakValueDictionary, array),
    *(ContextVar, Context, threading.local, SimpleQueue, CellType, methodcaller, weakref.WeakSet, weakref.finalize),
    torch.UntypedStorage,
)
_CLOSED_PACKAGES = ("multiprocessing", "ctypes", "_ctypes", "mmap")


class Kind(Enum):
    """How a value is treated; see `kind_of`."""

    __hash__ = object.__hash__

    PLAIN = auto()
    TENSOR = auto()
    MODULE = auto()
    OPTIMIZER = auto()
    SCHEDULER = auto()
    SCALER = auto()
    DICT = auto()
    LIST = auto()
    DEQUE = auto()
    SET = auto()
    TUPLE = auto()
    FROZENSET = auto()
    FUNCTION = auto()
    METHOD = auto()
    BUILTIN = auto()
    PARTIAL = auto()
    CLASS = auto()
    PYTHON_MODULE = auto()
    OBJECT = auto()
    ARRAY = auto()
    ITERATOR = auto()
    RANDOM = auto()
    CLOSED = auto()
    WEAK = auto()
    CACHED_FUNCTION = auto()
    COMPILED = auto()
    OPAQUE = auto()


LOOKED_INTO = frozenset((Kind.MODULE, Kind.OPTIMIZER, Kind.SCHEDULER, Kind.SCALER, Kind.OBJECT))
"""Kinds of objects whose attributes are looked at, whoever wrote their class."""
CONTAINERS = frozenset((Kind.DICT, Kind.LIST, Kind.DEQUE, Kind.SET, Kind.TUPLE, Kind.FROZENSET))
_FAMILIES: tuple[tuple[Any, Kind], ...] = (
    (torch.Tensor, Kind.TENSOR),
    (torch.nn.Module, Kind.MODULE),
    (torch.optim.Optimizer, Kind.OPTIMIZER),
    (LRScheduler, Kind.SCHEDULER),
    (GradScaler, Kind.SCALER),
    (np.generic, Kind.PLAIN),
    ((np.ndarray, bytearray), Kind.ARRAY),
    (random.SystemRandom, Kind.OPAQUE),  # without a state; its draws are refused as they happen
    (RANDOM_SOURCES, Kind.RANDOM),
    (Enum, Kind.OPAQUE),
    (dict, Kind.DICT),
    (list, Kind.LIST),
    (deque, Kind.DEQUE),
    (set, Kind.SET),
    (tuple, Kind.TUPLE),
    (frozenset, Kind.FROZENSET),
    (FunctionType, Kind.FUNCTION),
    (MethodType, Kind.METHOD),
    ((BuiltinMethodType, MethodWrapperType), Kind.BUILTIN),
    (partial, Kind.PARTIAL),
    (type, Kind.CLASS),
    (ModuleType, Kind.PYTHON_MODULE),
    (_CLOSED, Kind.CLOSED),
    ((weakref.ref, *weakref.ProxyTypes), Kind.WEAK),
    (type(lru_cache(len)), Kind.CACHED_FUNCTION),
    (_WALKED, Kind.OBJECT),
    (DataLoader, Kind.ITERATOR),
)


def kind_of(kind: type) -> Kind:
    """How values of a type are treated. OBJECT: its attributes are looked at. OPAQUE: only which object it is."""
    if kind in PLAIN:
        return Kind.PLAIN
    if COMPILED_FROM in own_of(kind):
        return Kind.COMPILED
    for family, answer in _FAMILIES:
        if issubclass(kind, family):
            return answer
    if any(module_of(owner).partition(".")[0] in _CLOSED_PACKAGES for owner in mro_of(kind)):
        return Kind.CLOSED
    if not is_library_class(kind) and (has_attributes(kind) or slots_of(kind)):
        return Kind.OBJECT
    if any("__next__" in own_of(owner) for owner in mro_of(kind)) and not issubclass(kind, io.IOBase):
        return Kind.ITERATOR
    if module_of(kind).startswith(_WALKED_PACKAGES) and has_attributes(kind):
        return Kind.OBJECT
    return Kind.OPAQUE


def referent_of(item: Any) -> Any:
    """What a weak reference, or a weak proxy, leads to; None when that is gone."""
    if is_a(item, weakref.ref):
        return weakref.ref.__call__(item)
    try:
        return item.__init__.__self__
    except ReferenceError:
        return None


def moves_on(item: Any) -> bool:
    """Whether reading from a value of C changes it, in ways that nothing shows: an iterator, an open file."""
    if is_a(item, io.IOBase):
        return (
            not (is_a(item, io.StringIO | io.BytesIO) or item in (sys.stdin, sys.stdout, sys.stderr))
            and not item.closed
            and item.readable()
        )
    following = next((own_of(owner)["__next__"] for owner in mro_of(type(item)) if "__next__" in own_of(owner)), None)
    return following is not None and not is_a(following, FunctionType) and not is_a(item, weakref.ProxyTypes)


def is_numbering(item: Any) -> bool:
    """Whether a value counts on with each call. The libraries' own counters only number what is made (threads)."""
    return is_a(item, itertools.count) or (is_a(item, MethodWrapperType) and is_a(item.__self__, itertools.count))


def is_heap_type(kind: type) -> bool:
    """Whether a class was made by code of Python's, or may be changed like one."""
    return bool(type.__getattribute__(kind, "__flags__") & _HEAP_TYPE)


def mro_of(kind: type) -> tuple[type, ...]:
    """The classes that a class derives from, itself first; like the next three without code of a metaclass."""
    found: tuple[type, ...] = type.__getattribute__(kind, "__mro__")
    return found


def built_in_base(kind: type) -> type:
    """The first class under a class, or that class itself, that code of Python's did not make."""
    return next(owner for owner in mro_of(kind) if not is_heap_type(owner))


def compiled_from(item: Any) -> Any:
    """What was compiled, if a value is the result of a door of ours; None otherwise."""
    name = own_of(type(item)).get(COMPILED_FROM)
    return None if name is None else attributes_of(item).get(name)


def own_of(kind: type) -> Mapping[str, Any]:
    """What a class itself holds, by name; the view is live."""
    found: Mapping[str, Any] = type.__getattribute__(kind, "__dict__")
    return found


def module_of(kind: type) -> str:
    """The name of the module that a class says it is of."""
    return str(type.__getattribute__(kind, "__module__"))


def name_of(kind: type) -> str:
    """A class's qualified name."""
    return str(type.__getattribute__(kind, "__qualname__"))


def is_a(value: object, kinds: Any) -> bool:
    """Whether a value is of a type; unlike `isinstance`, without asking the value for its class."""
    return issubclass(type(value), kinds)


def has_attributes(kind: type) -> bool:
    """Whether objects of a type have a `__dict__` that is read without running code of the user's."""
    if type.__getattribute__(kind, "__dictoffset__") == 0:
        return False
    found = [own_of(owner)["__dict__"] for owner in mro_of(kind) if "__dict__" in own_of(owner)]
    return bool(found) and not any(is_a(x, property) for x in found)  # a class of C may show none: asyncio.Future


def attributes_of(item: object) -> dict[str, Any]:
    """The `__dict__` of an object; a `__getattribute__` of its class is not run."""
    held: dict[str, Any] = object.__getattribute__(item, "__dict__")
    return held


def holds_more(item: object) -> bool:
    """Whether a container, or a value of a class under one of Python's, has attributes of its own besides."""
    kind = type(item)
    if not is_heap_type(kind):
        return False
    held = attributes_of(item) if has_attributes(kind) else {}
    return (bool(held) and held is not item) or bool(slots_of(kind))


def slots_of(kind: type) -> dict[str, Any]:
    """The descriptors of a type's slots, those of the classes that the user wrote, by name; the factory of defaults."""
    return {
        name: value
        for owner in mro_of(kind)
        if owner is defaultdict or not is_library_class(owner)
        for name, value in own_of(owner).items()
        if type(value) is MemberDescriptorType
    }


def special_names(kind: type) -> list[str]:
    """What Python looks for in a class by itself: the special methods that it has, and those that change what it is."""
    own = [name for name, x in own_of(kind).items() if name.startswith("__") and is_a(x, FunctionType)]
    return sorted({*own, *LOOKED_FOR} - _NEVER_COMPARED)


def members_of(kind: type) -> dict[str, MemberDescriptorType]:
    """The descriptors of all slots of a type, whoever wrote the classes that have them, by name."""
    found = [(name, x) for owner in mro_of(kind) for name, x in list(own_of(owner).items())]
    return {name: x for name, x in reversed(found) if type(x) is MemberDescriptorType}


def is_made_of_attributes(kind: type) -> bool:
    """Whether an object of a class is nothing but its attributes, and goes without a word (`__del__`)."""
    return kind_of(kind) is Kind.OBJECT and _holds_attributes_alone(kind)


def is_made_again(kind: type) -> bool:
    """Whether a run can make another object of a class, from its attributes: of a module's, too."""
    return kind_of(kind) in (Kind.OBJECT, Kind.MODULE) and _holds_attributes_alone(kind)


def _holds_attributes_alone(kind: type) -> bool:
    return built_in_base(kind) in ATTRIBUTES_ALONE and not any("__del__" in own_of(owner) for owner in mro_of(kind))


def plain_key(value: Any) -> Hashable:
    """A key of a value of kind PLAIN: equal for values that no code can tell apart, but by identity."""
    kind = type(value)
    if kind is float:
        return (float, struct.pack("=d", value))
    if kind is complex:
        return (complex, struct.pack("=dd", value.real, value.imag))
    if kind is range:
        return (range, value.start, value.stop, value.step)
    if isinstance(value, np.generic):
        return (kind, str(value.dtype), value.tobytes())
    return (kind, value)


def is_plain_key(key: Any) -> bool:
    """Whether a key of a dictionary is a plain value, or a tuple of such, which is written as it is."""
    return type(key) in PLAIN or (type(key) is tuple and all(map(is_plain_key, key)))


def is_same(old: Any, new: Any) -> bool:
    """Whether two values are one object, or plain and the same, or tuples of such."""
    if old is new:
        return True
    if type(old) is not type(new):
        return False
    if type(old) is tuple:
        return len(old) == len(new) and all(map(is_same, old, new))
    if type(old) in PLAIN or is_a(old, np.generic):
        return plain_key(old) == plain_key(new)
    return False


def fingerprint(array: Any) -> Hashable | None:
    """What a small array of NumPy, or a small `bytearray`, holds; None for one that is too large, or holds objects."""
    if isinstance(array, bytearray):
        return (bytearray, bytes(array)) if len(array) <= MAX_WATCHED_BYTES else None
    if array.nbytes > MAX_WATCHED_BYTES or array.dtype.hasobject:
        return None
    return (type(array), str(array.dtype), array.shape, array.strides, np.ndarray.tobytes(array))


def copy_of_array(array: Any) -> Any:
    """A copy of a small array, or a small `bytearray`; None for others."""
    return array.copy() if fingerprint(array) is not None else None


def fill_array(array: Any, copy: Any) -> None:
    """Let an array hold what its copy does."""
    if isinstance(array, bytearray):
        array[:] = copy
    else:
        np.ndarray.__setitem__(array, ..., copy)


def random_state(source: Any) -> tuple[Hashable, Any]:
    """Where a random generator of Python or of NumPy is: a key, and what `set_random_state` takes."""
    if isinstance(source, np.random.Generator):
        state: Any = source.bit_generator.state
        return repr(state), state
    if isinstance(source, np.random.RandomState) or source is np.random:
        state = source.get_state(legacy=True)
        return (state[1].tobytes(), *state[2:]), state
    state = source.getstate()
    return state, state


def set_random_state(source: Any, state: Any) -> None:
    """Put a random generator where `random_state` found it."""
    if isinstance(source, np.random.Generator):
        source.bit_generator.state = state
    elif isinstance(source, np.random.RandomState) or source is np.random:
        source.set_state(state)
    else:
        source.setstate(state)


def dict_methods(item: dict[Any, Any]) -> type[dict[Any, Any]]:
    """The built-in class whose methods keep a dictionary whole, whatever a class of the user's overrides."""
    return OrderedDict if is_a(item, OrderedDict) else dict
