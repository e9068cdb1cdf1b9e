"""The arguments that a program expects; of tensors, what a user has written on them."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dovetail.frontends.structure import Structure
from dovetail.reach.contents import identified, value_key
from dovetail.reach.values import PLAIN, attributes_of, is_same


@dataclass(frozen=True, slots=True)
class Written:
    """The attributes that tensors are to have: those that have some, or were asked for one, by their places."""

    attributes: tuple[tuple[int, dict[str, Any]], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.attributes)

    @staticmethod
    def on(items: Sequence[Any], asked: Collection[int], first: int = 0) -> Written:
        """What there is now. asked: places of tensors that code asked for attributes by name. first: place."""
        held = [(i, dict(attributes_of(x))) for i, x in enumerate(items) if isinstance(x, torch.Tensor) and i >= first]
        return Written(tuple((i, known) for i, known in held if known or i in asked))

    def are(self, items: Sequence[Any]) -> bool:
        """Whether tensors have these attributes."""
        return not self.attributes or next(self.changed(items), None) is None

    def changed(self, items: Sequence[Any]) -> Iterator[int]:
        """The places of tensors that have others."""
        return (place for place, known in self.attributes if not _has_attributes(items[place], known))


@dataclass(frozen=True, slots=True)
class Arguments:
    """What is expected of the arguments.

    plain: by leaf, the key of its value. lifted: leaves that are numbers. attributes: of tensors.
    """

    structure: Structure
    plain: tuple[tuple[int, Any], ...]
    lifted: tuple[tuple[int, type], ...]
    attributes: Written

    @staticmethod
    def like(
        leaves: Sequence[Any],
        structure: Structure,
        lifted: Collection[int] = (),
        asked: Collection[int] = (),
        unread: Collection[int] = (),
    ) -> Arguments:
        """What a program expects that was recorded for these.

        lifted: leaves that are its inputs. asked: tensors that code asked for attributes by name. unread: leaves that
        may be anything but tensors.
        """
        plain = [(i, x) for i, x in enumerate(leaves) if not isinstance(x, torch.Tensor)]
        return Arguments(
            structure,
            tuple((i, value_key(x)) for i, x in plain if i not in lifted and i not in unread),
            tuple((i, type(x)) for i, x in plain if i in lifted),
            Written.on(leaves, asked),
        )

    def are(self, leaves: Sequence[Any], structure: Structure) -> bool:
        """Whether the arguments of a call are as expected, tensors apart."""
        if structure is not self.structure and structure != self.structure:
            return False
        for index, key in self.plain:
            if value_key(leaves[index]) != key:
                return False
        for index, kind in self.lifted:
            if type(leaves[index]) is not kind:
                return False
        return self.attributes.are(leaves)

    def replaced_objects(self, leaves: Sequence[Any]) -> Iterator[Any]:
        """Leaves that are other objects than expected, of the same class."""
        for index, key in self.plain:
            item = leaves[index]
            if type(item) is key[0] and identified(item) == [item] and value_key(item) != key:
                yield item

    def changed_numbers(self, leaves: Sequence[Any]) -> frozenset[int]:
        """Leaves that are other numbers than expected, of the same type."""
        return frozenset(
            index
            for index, key in self.plain
            if type(leaves[index]) in (int, float) and value_key(leaves[index]) != key and key[0] is type(leaves[index])
        )

    def difference(self, leaves: Sequence[Any], structure: Structure) -> str:
        """What is not as expected, "" where nothing is."""
        if structure != self.structure:
            return "the structure of the arguments changed"
        for index, key in self.plain:
            now = value_key(leaves[index])
            if now != key:
                return f"argument {index} changed: {_shown(key)} -> {_shown(now)}"
        told = [
            f"argument {i} is not a valid {kind.__name__}" for i, kind in self.lifted if type(leaves[i]) is not kind
        ]
        told += [f"attributes of argument {place} changed" for place in self.attributes.changed(leaves)]
        return next(iter(told), "")


def _has_attributes(tensor: Any, known: dict[str, Any]) -> bool:
    """Whether a user has written this on a tensor, and nothing else."""
    if not isinstance(tensor, torch.Tensor):  # for others to judge
        return True
    held = attributes_of(tensor)
    return held.keys() == known.keys() and all(is_same(value, held[name]) for name, value in known.items())


def _shown(key: Hashable) -> str:
    """A value of which this is the key, for people."""
    if not (isinstance(key, tuple) and len(key) == 2 and isinstance(key[0], type)):
        return str(key)
    kind, held = key
    return str(held) if kind in PLAIN or not isinstance(held, int) else f"a {kind.__name__}"
