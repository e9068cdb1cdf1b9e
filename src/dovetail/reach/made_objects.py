"""Objects that are nothing but their attributes: what they hold, and others that hold something else, made without
running code of the user's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from functools import lru_cache
from types import MemberDescriptorType
from typing import Any

from dovetail.reach.values import attributes_of, built_in_base, has_attributes, is_heap_type, mro_of, own_of


def held_by(item: Any) -> dict[str, Any]:
    """What an object holds by name: in its `__dict__`, and in slots that are set."""
    kind: Any = type(item)
    held = {**attributes_of(item)} if _has_attributes(kind) else {}
    for name, slot in _slots(kind).items():
        with contextlib.suppress(AttributeError):  # it is not set
            held[name] = slot.__get__(item)
    return held


def new_object(kind: type) -> Any:
    """An object of a class that holds nothing yet."""
    base: Any = built_in_base(kind)
    return base.__new__(kind)


def fill(made: Any, names: Iterable[str], values: Iterable[Any]) -> None:
    """Let a new object hold values by these names."""
    kind: Any = type(made)
    slots = _slots(kind)
    for name, value in zip(names, values, strict=True):
        if name in slots:
            slots[name].__set__(made, value)
        else:
            attributes_of(made)[name] = value


_has_attributes = lru_cache(256)(has_attributes)


@lru_cache(256)
def _slots(kind: type) -> dict[str, Any]:
    """The descriptors of a class's slots, whoever wrote the classes that it derives from."""
    owned = [own_of(owner) for owner in reversed(mro_of(kind)) if is_heap_type(owner)]
    return {name: x for table in owned for name, x in table.items() if type(x) is MemberDescriptorType}
