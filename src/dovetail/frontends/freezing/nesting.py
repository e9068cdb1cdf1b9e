"""How the arguments or results of a method are nested: as torch's pytrees say, or as a file says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from dovetail.artifact.tree import Tree, put_together, take_apart, tree_of
from dovetail.errors import NotSerializable
from dovetail.frontends.structure import Structure, flatten, unflatten


class Nesting(Protocol):
    """Takes apart and puts together what is nested in one way."""

    def take_apart(self, value: Any) -> list[Any]:
        """The leaves. Raises: ValueError with the difference when it is nested differently."""

    def put_together(self, leaves: Sequence[Any]) -> Any:
        """The whole with these leaves."""

    def is_leaf(self) -> bool:
        """Whether the whole is its one leaf."""

    def tree(self) -> Tree:
        """How it is nested, for a file. Raises: NotSerializable."""


class _Place(int):
    """Stands for a leaf. Sizes hold numbers alone, and are leaves themselves if those are plain ones."""


@dataclass(frozen=True, slots=True)
class Captured:
    """As an example was, with its own classes."""

    structure: Structure
    count: int

    def take_apart(self, value: Any) -> list[Any]:
        """See `Nesting`."""
        leaves, structure = flatten(value)
        if structure != self.structure or len(leaves) != self.count:
            raise ValueError(self._difference(value))
        return leaves

    def put_together(self, leaves: Sequence[Any]) -> Any:
        """See `Nesting`."""
        return unflatten(list(leaves), self.structure)

    def is_leaf(self) -> bool:
        """See `Nesting`."""
        return self.structure == flatten(None)[1]

    def tree(self) -> Tree:
        """See `Nesting`."""
        what, own_code = "the structure of a call", "a container's own code refuses to put other leaves into it"
        try:
            filled = unflatten([_Place()] * self.count, self.structure)
        except Exception as error:  # whatever that code raises
            hint = "use lists, tuples, dictionaries, named tuples or dataclasses"
            raise NotSerializable(what=what, reason=own_code, hint=hint) from error
        return tree_of(filled, what)

    def _difference(self, value: Any) -> str:
        try:
            take_apart(value, self.tree())
        except Exception as error:  # whatever it is, the structures differ
            return str(error)
        return "it is nested differently from the example"


@dataclass(frozen=True, slots=True)
class Saved:
    """As a file says. containers: classes to make, by qualified name."""

    structure: Tree
    containers: Mapping[str, type] = field(default_factory=dict)

    def take_apart(self, value: Any) -> list[Any]:
        """See `Nesting`."""
        return take_apart(value, self.structure)

    def put_together(self, leaves: Sequence[Any]) -> Any:
        """See `Nesting`."""
        return put_together(leaves, self.structure, self.containers)

    def is_leaf(self) -> bool:
        """See `Nesting`."""
        return self.structure == Tree()

    def tree(self) -> Tree:
        """See `Nesting`."""
        return self.structure
