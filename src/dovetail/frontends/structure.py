"""Taking arguments and results apart: torch's pytrees, and the dataclasses that nobody registered as such.

A dataclass is taken apart into its attributes and put together again without running its code. What is put together is
another object: a change that the compiled code makes to it would be lost, and is looked for (`changes`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import repeat
from typing import Any, TypeAlias

import torch

from dovetail.torch_compat import pytree


@dataclass(frozen=True, slots=True)
class Parts:
    """An object that was taken apart: its place among the leaves, the number of its own leaves, its attributes."""

    place: int
    count: int
    cls: type
    names: tuple[str, ...]
    structure: Structure


@dataclass(frozen=True, slots=True)
class WithObjects:
    """A pytree with objects among its leaves."""

    spec: pytree.TreeSpec
    objects: tuple[Parts, ...]


Structure: TypeAlias = pytree.TreeSpec | WithObjects

_NO_CONTAINERS = frozenset((torch.Tensor, torch.nn.Parameter, int, float, bool, complex, str, type(None)))
_TEXT = frozenset((str,))


def flatten(tree: object, is_whole: Callable[[Any], bool] | None = None) -> tuple[list[Any], Structure]:
    """The leaves of nested containers and dataclasses, and how to put them together.

    is_whole: whether a container, or an object, is a leaf all the same.
    """
    leaves, spec = pytree.flatten(tree, is_whole)
    if not any(map(_is_object, leaves)):
        return leaves, spec
    flat: list[Any] = []
    objects: list[Parts] = []
    for leaf in leaves:
        if not _is_object(leaf) or (is_whole is not None and is_whole(leaf)):
            flat.append(leaf)
            continue
        names = _attributes(leaf)
        own, structure = flatten([getattr(leaf, name) for name in names], is_whole)
        objects.append(Parts(len(flat), len(own), type(leaf), names, structure))
        flat += own
    return flat, WithObjects(spec, tuple(objects))


def flatten_call(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[list[Any], Structure]:
    """The leaves of the arguments of a call, and how to put them together.

    Cost: 0.5 us where none is a container; 0.5 us for each plain one, and 0.03 us for each leaf.
    """
    leaves = [*args, *kwargs.values()]
    if _NO_CONTAINERS.issuperset(map(type, leaves)):
        return leaves, _structure_of_leaves(len(args), tuple(kwargs))
    flat: list[Any] = []
    try:
        return flat, _structure_of(_form(args, flat), _form(kwargs, flat))
    except _NotPlainError:
        return flatten((args, kwargs))


def is_flat(args: tuple[Any, ...], kwargs: Mapping[str, Any], structure: Structure) -> bool:
    """Whether no argument of a call is a container. structure: of the call."""
    return structure == _structure_of_leaves(len(args), tuple(kwargs))


def unflatten(leaves: list[Any], structure: Structure) -> Any:
    """What `flatten` took apart, with other leaves."""
    if not isinstance(structure, WithObjects):
        return pytree.unflatten(leaves, structure)
    whole: list[Any] = []
    done = 0
    for parts in structure.objects:
        whole += leaves[done : parts.place]
        done = parts.place + parts.count
        made: Any = object.__new__(parts.cls)
        values = unflatten(leaves[parts.place : done], parts.structure)
        for name, value in zip(parts.names, values, strict=True):
            object.__setattr__(made, name, value)
        whole.append(made)
    return pytree.unflatten([*whole, *leaves[done:]], structure.spec)


def changes(tree: object, leaves: list[Any], structure: Structure) -> bool:
    """Whether code has put other things into a tree since it was put together."""
    now, found = flatten(tree)
    return found != structure or any(a is not b for a, b in zip(now, leaves, strict=True))


class _NotPlainError(Exception):
    """There is something in a container that torch's pytrees have to look at."""


def _form(item: Any, leaves: list[Any]) -> Hashable:
    """What tells the structure of containers of Python's own. leaves: gets theirs. Raises: _NotPlainError."""
    kind = type(item)
    if kind in _NO_CONTAINERS:
        leaves.append(item)
        return None
    names: Hashable
    if kind is dict:
        names, held = tuple(item), item.values()
        if not _TEXT.issuperset(map(type, names)):  # 1 and True are equal
            raise _NotPlainError
    elif kind is list or kind is tuple:
        names, held = len(item), item
    else:
        raise _NotPlainError
    if _NO_CONTAINERS.issuperset(map(type, held)):
        leaves += held
        return kind, names
    return kind, names, tuple([_form(part, leaves) for part in held])


def _like(form: Any) -> Any:
    """A container of a form."""
    if form is None:
        return None
    kind, names, *parts = form
    held = map(_like, parts[0]) if parts else repeat(None, names if kind is not dict else len(names))
    return dict(zip(names, held, strict=True)) if kind is dict else kind(held)


@lru_cache(256)
def _structure_of(*forms: Hashable) -> Structure:
    return flatten(tuple(map(_like, forms)))[1]


@lru_cache(256)
def _structure_of_leaves(count: int, names: tuple[str, ...]) -> Structure:
    return flatten(((None,) * count, dict.fromkeys(names)))[1]


def _is_object(leaf: object) -> bool:
    return hasattr(type(leaf), "__dataclass_fields__") and not isinstance(leaf, torch.nn.Module)


def _attributes(item: Any) -> tuple[str, ...]:
    fields = [field.name for field in dataclasses.fields(item) if hasattr(item, field.name)]
    return tuple(dict.fromkeys([*fields, *getattr(item, "__dict__", ())]))
