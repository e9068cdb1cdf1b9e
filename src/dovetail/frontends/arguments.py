"""The arguments that a program expects, tensors apart."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dovetail.frontends.structure import Structure
from dovetail.reach.contents import value_key
from dovetail.reach.values import PLAIN


@dataclass(frozen=True, slots=True)
class Arguments:
    """What is expected of the arguments. plain: by leaf, the key of its value. lifted: leaves that are numbers."""

    structure: Structure
    plain: tuple[tuple[int, Any], ...]
    lifted: tuple[tuple[int, type], ...]

    @staticmethod
    def like(leaves: Sequence[Any], structure: Structure, lifted: Collection[int] = ()) -> Arguments:
        """What a program expects that was recorded for these. lifted: leaves that are its inputs."""
        plain = [(i, x) for i, x in enumerate(leaves) if not isinstance(x, torch.Tensor)]
        return Arguments(
            structure,
            tuple((i, value_key(x)) for i, x in plain if i not in lifted),
            tuple((i, type(x)) for i, x in plain if i in lifted),
        )

    def are(self, leaves: Sequence[Any], structure: Structure) -> bool:
        """Whether the arguments of a call are as expected, tensors apart."""
        if structure is not self.structure and structure != self.structure:
            return False
        for index, key in self.plain:
            if value_key(leaves[index]) != key:
                return False
        return all(type(leaves[index]) is kind for index, kind in self.lifted)

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
        return next(
            (f"argument {i} is not a valid {kind.__name__}" for i, kind in self.lifted if type(leaves[i]) is not kind),
            "",
        )


def _shown(key: Hashable) -> str:
    """A value of which this is the key, for people."""
    if not (isinstance(key, tuple) and len(key) == 2 and isinstance(key[0], type)):
        return str(key)
    kind, held = key
    return str(held) if kind in PLAIN or not isinstance(held, int) else f"a {kind.__name__}"
