"""Which names the code of a function reads: what its calls so far have shown.

`Reads` knows places and values of one call. What lasts is the names: attribute `weight` of a `Linear`, a global
variable of a module, the code that runs. They tell where to look whoever looks at objects later, or at other ones.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from types import CodeType

from dovetail.reach.reads import Reads
from dovetail.reach.values import is_a

_NONE: AbstractSet[str] = frozenset()


class Names:
    """Names that calls have read. Keeps classes and code alive, no other objects.

    codes: of the user's functions that ran.
    """

    def __init__(self) -> None:
        self.codes: set[CodeType] = set()
        self._attributes: dict[type, set[str]] = {}
        self._whole: set[type] = set()
        self._of_classes: dict[type, set[str]] = {}
        self._entries: dict[str, set[str]] = {}

    def add(self, reads: Reads) -> bool:
        """Learn from a call; whether it has read something under a name that is new."""
        before = self._count
        self.codes.update(reads.codes.keys())
        for key, name in reads.attributes:
            owner = reads.owners[key]
            if not is_a(owner, type):
                self._attributes.setdefault(type(owner), set()).add(name)
        self._whole.update(map(type, reads.wholly_read))
        for (_, name), (owner, _) in reads.class_attributes.items():
            self._of_classes.setdefault(owner, set()).add(name)
        for (_, name), (known, _) in reads.namespaces.items():
            home = known.get("__name__")
            if isinstance(home, str):
                self._entries.setdefault(home, set()).add(name)
        return self._count != before

    def of_objects(self, kind: type) -> AbstractSet[str] | None:
        """Attributes of the objects of a class; None for all that they have."""
        return None if kind in self._whole else self._attributes.get(kind, _NONE)

    def of_class(self, owner: type) -> AbstractSet[str]:
        """Attributes that a class itself holds, or would hide."""
        return self._of_classes.get(owner, _NONE)

    def of_module(self, name: str) -> AbstractSet[str]:
        """Global variables of a module."""
        return self._entries.get(name, _NONE)

    @property
    def _count(self) -> int:
        tables = (self._attributes, self._of_classes, self._entries)
        return len(self.codes) + len(self._whole) + sum(len(names) for table in tables for names in table.values())
