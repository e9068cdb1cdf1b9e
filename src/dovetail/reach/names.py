"""Which names the code of a function reads: what its calls so far have shown.

`Reads` knows slots and values of one call. What lasts is the names: attribute `weight` of a `Linear`, a global
variable of a module, the code that runs. They tell where to look whoever looks at objects later, or at other ones.
"""

from __future__ import annotations

from collections.abc import Hashable
from collections.abc import Set as AbstractSet
from types import CodeType
from typing import Any

from dovetail.reach.expected import expected_reads
from dovetail.reach.reads import Reads
from dovetail.reach.values import is_a

_NONE: AbstractSet[str] = frozenset()


class Names:
    """Names that calls have read. Keeps classes and code alive, no other objects.

    codes: of the user's functions that ran. unread: paths of containers that calls only put things into.
    """

    def __init__(self) -> None:
        self.codes: set[CodeType] = set()
        self._attributes: dict[type, set[str]] = {}
        self._whole: set[type] = set()
        self._of_classes: dict[type, set[str]] = {}
        self._entries: dict[str, set[str]] = {}
        self.unread: set[tuple[Hashable, ...]] = set()
        self._overwritten: set[tuple[type, str]] = set()
        self._expected: dict[type, set[str]] = {}

    def add(self, reads: Reads, *, expects: bool = False) -> bool:
        """Learn from a call; whether it has read something under a name that is new.

        expects: the call did not end; look also where modules and optimizers that it has met will be read, it seems.
        """
        before = self._count
        if expects:
            found = [*reads.owners.values(), *reads.attributes.values(), *(x for _, x in reads.namespaces.values())]
            for kind, expected in expected_reads([*found, *(x for *_, x in reads.cells.values())], reads.codes):
                self._expected.setdefault(kind, set()).update(expected)
        self._learn_overwritten(reads)
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

    def _learn_overwritten(self, reads: Reads) -> None:
        """Attributes that calls set before they read them, if those that were seen before did so as well."""
        places = [(key, name) for key, name in reads.attributes if not is_a(reads.owners[key], type)]
        read = {(type(reads.owners[key]), name) for key, name in places if (key, name) not in reads.overwritten}
        new = {(type(reads.owners[key]), name) for key, name in places if name not in self.seen(reads.owners[key])}
        self._overwritten = (self._overwritten | new) - read

    def seen(self, item: Any) -> AbstractSet[str]:
        """Attributes that objects of a class were read or set by."""
        return self._attributes.get(type(item), _NONE)

    def overwritten_of(self, kind: type) -> AbstractSet[str]:
        """Attributes of the objects of a class of which only matters what calls set them to."""
        return {name for known, name in self._overwritten if known is kind}

    def of_objects(self, kind: type) -> AbstractSet[str] | None:
        """Attributes of the objects of a class; None for all that they have."""
        if kind in self._whole:
            return None
        read, expected = self._attributes.get(kind, _NONE), self._expected.get(kind)
        return read if expected is None else read | expected

    def of_class(self, owner: type) -> AbstractSet[str]:
        """Attributes that a class itself holds, or would hide."""
        return self._of_classes.get(owner, _NONE)

    def of_module(self, name: str) -> AbstractSet[str]:
        """Global variables of a module."""
        return self._entries.get(name, _NONE)

    @property
    def _count(self) -> tuple[int, int]:
        tables = (self._attributes, self._of_classes, self._entries)
        count = len(self.codes) + len(self._whole) + sum(len(names) for table in tables for names in table.values())
        return count, len(self._overwritten)
