"""What arguments that are not tensors hold: code can change it in place, and then the call is another one."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from dovetail.reach.contents import contents_of, is_compared_by_contents, is_plain, parts_of, value_key
from dovetail.reach.libraries import is_library_class
from dovetail.reach.values import attributes_of, has_attributes
from dovetail.torch_compat.autograd import version_of

_OPAQUE: Any = (torch.nn.Module, ModuleType, type)  # what they hold is watched, or never a call's own


def held_in(item: Any) -> tuple[Any, ...]:
    """What a value holds, and what that holds, to be compared for equality; empty where it holds nothing.

    Plain values count by value, tensors by identity and by how often they were written, other objects by identity.
    """
    found: list[Any] = []
    met: dict[int, tuple[int, Any]] = {}
    waiting = [item]
    while waiting:
        one = waiting.pop()
        if is_plain(one):
            found.append(value_key(one))
        elif id(one) in met:
            found.append(met[id(one)][0])
        else:
            met[id(one)] = len(met), one
            parts = _parts(one)
            if one is not item or parts:
                found.append(_noted(one, is_itself=one is item))
            waiting += parts
    return tuple(found)


@dataclass(frozen=True, slots=True, eq=False)
class _Same:
    """Is equal where the object is this one, which it keeps alive: its address is nobody else's.

    writes: how often it was written, where that is counted.
    """

    item: Any
    writes: int

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.item is other.item and self.writes == other.writes

    __hash__ = None  # type: ignore[assignment]


def _same(one: Any) -> _Same:
    return _Same(one, version_of(one) if isinstance(one, torch.Tensor) else 0)


def _noted(one: Any, *, is_itself: bool) -> Any:
    """What is compared of a value besides what it holds."""
    parts = parts_of(one) if _is_open(one) else None
    if parts is not None:
        return type(one), parts(one)[0]
    return (type(one), len(contents_of(one))) if is_itself or is_compared_by_contents(one) else _same(one)


def _parts(one: Any) -> list[Any]:
    if isinstance(one, torch.Tensor) or not _is_open(one):
        return []
    if is_compared_by_contents(one):
        return contents_of(one) or [None]
    if has_attributes(type(one)) and not is_library_class(type(one)):
        held = attributes_of(one)
        return [*held, *held.values()]
    return []


def _is_open(one: Any) -> bool:
    return not isinstance(one, _OPAQUE) and not callable(one)
