"""What reads the attributes of objects in ways that nothing reports: functions of C that ask no class for leave."""

from __future__ import annotations

import operator
from inspect import getattr_static
from types import (
    BuiltinMethodType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodWrapperType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any

import torch

from dovetail.reach.codes import CodeNames
from dovetail.reach.libraries import is_library_class, is_users_function
from dovetail.reach.slots import PartOf
from dovetail.reach.values import is_a

WHOLE = frozenset(("__dict__", "__reduce_ex__", "__reduce__", "__getstate__", "__copy__", "__deepcopy__", "__dir__"))
_BY_NAME = (operator.attrgetter, operator.methodcaller)
_NAMED = frozenset(("__getattribute__", "getattr_static"))
_DEFINE = frozenset(("__getattribute__", "__getattr__", "__setattr__", "__delattr__"))
_OF_FUNCTIONS = frozenset(("__name__", "__qualname__", "__doc__", "__module__", "__annotations__"))
_OF_CLASSES = frozenset(("__name__", "__qualname__", "__bases__", "__mro__"))
_DESCRIBING = frozenset(("__annotations__", "get_annotations", "get_type_hints", "signature", "getfullargspec"))
_BOUND: Any = (MethodWrapperType, BuiltinMethodType)
_UNBOUND: Any = (WrapperDescriptorType, MethodDescriptorType)
_OF_SLOTS: Any = (MemberDescriptorType, GetSetDescriptorType)


class PastReports:
    """What code of a call can have read past what reports, as far as it has met it."""

    def __init__(self) -> None:
        self._any_class = self._any_object = False
        self._has_slots = self._gets = False
        self._bound: list[Any] = []
        self._objects: list[Any] = []
        self._owners: list[Any] = []
        self._describes = False
        self._functions: list[FunctionType] = []
        self._parts: list[PartOf] = []

    def meet(self, item: Any, kind: type) -> None:
        """Code may hold a value, of some class, now.

        `operator.attrgetter` reads classes and modules past what reports. A bound `__getattribute__` of C, and its
        like, read their one object; unbound ones, and what slots are found with, any.
        """
        if issubclass(kind, _BOUND):
            owner, name = item.__self__, item.__name__
            self._any_object |= name == "__get__" and is_a(owner, _OF_SLOTS)
            if (name == "__getattribute__" or name in WHOLE) and _may_be_read(owner):
                self._bound.append(owner)
        elif issubclass(kind, _UNBOUND):
            self._any_object |= item.__name__ == "__getattribute__" or item.__name__ in WHOLE
        elif issubclass(kind, _OF_SLOTS):
            self._has_slots = True
            self._any_object |= self._gets
        elif item is getattr_static:
            self._any_object = True
        elif any(item is known or kind is known for known in _BY_NAME):
            self._any_class = True
        elif kind is FunctionType and is_users_function(item):
            self._functions.append(item)
        elif not issubclass(kind, type) and _may_be_read(item):
            self._objects.append(item)

    def meet_owner(self, owner: type | ModuleType) -> None:
        """Code may hold a class, or a module, of the user's now."""
        self._owners.append(owner)

    def part(self, item: Any, name: str) -> None:
        """Code reads an attribute of what a global variable, or a chain of attributes, leads to."""
        if is_a(item, type):
            is_part = name in _OF_CLASSES and not is_library_class(item)
        else:
            is_part = name in _OF_FUNCTIONS and is_a(item, FunctionType)
        if is_part:
            self._parts.append(PartOf(item, name))

    def code(self, name: str, names: CodeNames) -> None:
        """Code runs. name: its own. names: what it names.

        Of objects that define how their attributes are read, everything counts as read anyway. Annotations of any
        function that is met count as read where code asks for those of one.
        """
        attributes = names.attributes
        self._describes |= not _DESCRIBING.isdisjoint((*attributes, *(chain[0] for chain in names.chains)))
        if name not in _DEFINE:
            self._gets |= "__get__" in attributes
            self._any_object |= not _NAMED.isdisjoint(attributes) or (self._gets and self._has_slots)

    def due(self) -> Any:
        """What counts as read wholly, or a part that counts as read, once each; None when nothing is left."""
        if self._parts:
            return self._parts.pop()
        if self._describes and self._functions:
            return PartOf(self._functions.pop(), "__annotations__")
        if self._bound:
            return self._bound.pop()
        if self._any_object and self._objects:
            return self._objects.pop()
        return self._owners.pop() if (self._any_object or self._any_class) and self._owners else None


def _may_be_read(item: Any) -> bool:
    return not (is_a(item, ModuleType | torch.Tensor) or is_library_class(type(item)))
