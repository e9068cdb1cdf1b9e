"""Taking arguments and results apart: torch's pytrees, and the dataclasses that nobody registered as such.

A dataclass is taken apart into its attributes and put together again without running its code. What is put together is
another object: a change that the compiled code makes to it would be lost, and is looked for (`changes`).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
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


def flatten(tree: object, *, results: bool = False) -> tuple[list[Any], Structure]:
    """The leaves of nested containers and dataclasses, and how to put them together. results: they are outputs."""
    leaves, spec = pytree.flatten_results(tree) if results else pytree.flatten(tree)
    if not any(map(_is_object, leaves)):
        return leaves, spec
    flat: list[Any] = []
    objects: list[Parts] = []
    for leaf in leaves:
        if not _is_object(leaf):
            flat.append(leaf)
            continue
        names = _attributes(leaf)
        own, structure = flatten([getattr(leaf, name) for name in names], results=results)
        objects.append(Parts(len(flat), len(own), type(leaf), names, structure))
        flat += own
    return flat, WithObjects(spec, tuple(objects))


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


def changes(tree: object, leaves: list[Any], structure: Structure, *, results: bool = False) -> bool:
    """Whether code has put other things into a tree since it was put together. results: as `flatten` was told."""
    now, found = flatten(tree, results=results)
    return found != structure or any(a is not b for a, b in zip(now, leaves, strict=True))


def _is_object(leaf: object) -> bool:
    return hasattr(type(leaf), "__dataclass_fields__") and not isinstance(leaf, torch.nn.Module)


def _attributes(item: Any) -> tuple[str, ...]:
    fields = [field.name for field in dataclasses.fields(item) if hasattr(item, field.name)]
    return tuple(dict.fromkeys([*fields, *getattr(item, "__dict__", ())]))
