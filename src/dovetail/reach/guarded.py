"""What a guard compares: slots, and what they held."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

from dovetail.reach.contents import Snapshot
from dovetail.reach.known import without
from dovetail.reach.reads import Reads
from dovetail.reach.slots import NamesOf
from dovetail.reach.values import attributes_of, has_attributes, name_of

FUNCTION_PARTS = ("__code__", "__defaults__", "__kwdefaults__")


@dataclass(slots=True, eq=False)
class Table:
    """Entries of a dictionary.

    title: what a user would write for it, and `link`, with braces for a key, what follows it. is_whole: that there are
    no others counts, and their order.
    """

    title: str
    link: str
    names: list[Any] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)
    is_whole: bool = False

    def add(self, name: Any, value: Any) -> None:
        """One more entry."""
        self.names.append(name)
        self.values.append(value)

    def label(self, name: Any) -> str:
        """What a user would write for an entry."""
        return f"{self.title}{self.link.format(name)}" if self.title else str(name)


@dataclass(slots=True, eq=False)
class Guarded:
    """Slots of all kinds.

    snapshot: what containers among the values hold. is_bound: the values are those that a program is bound to, so that
    of objects and containers it also counts which ones they are; they are kept alive, and kinds of tensors are for
    others to judge. objects: each with its class. tables: entries of the `__dict__` of objects, by their number.
    bound_tables: which dictionaries these are to be, where that counts. class_tables: entries of classes.
    dictionaries: that code has by other ways. cells: with names and values. descriptors: of slots of objects, by the
    number of the object, with the values. functions: with their `FUNCTION_PARTS`. asked: functions, with their answers.
    roots: see `Reads`. containers: with their titles; they are to hold what the snapshot says.
    """

    snapshot: Snapshot
    is_bound: bool = False
    objects: list[tuple[Any, type]] = field(default_factory=list)
    tables: list[tuple[int, Table]] = field(default_factory=list)
    bound_tables: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    class_tables: list[tuple[type, Table]] = field(default_factory=list)
    dictionaries: list[tuple[dict[Any, Any], Table]] = field(default_factory=list)
    cells: list[tuple[Any, str, Any]] = field(default_factory=list)
    descriptors: list[tuple[int, Any, Any]] = field(default_factory=list)
    functions: list[tuple[Any, list[Any]]] = field(default_factory=list)
    asked: dict[Callable[[], Any], Any] = field(default_factory=dict)
    roots: Sequence[Any] = ()
    containers: list[tuple[Any, str]] = field(default_factory=list)


def guarded_by_reads(
    reads: Reads,
    is_private: Callable[[Any], bool],
    known: AbstractSet[tuple[int, str]],
    lifted: AbstractSet[tuple[int, str]] = frozenset(),
) -> Guarded:
    """What was read in a recording, as it was before.

    is_private: whether an object was made by the call. known: see `dovetail.reach.known.without`. lifted: slots, named
    alike, of numbers that are inputs of the program.
    """
    reads = without(reads, known)
    found = Guarded(reads.snapshot)
    found.objects = [(x, type(x)) for x in reads.owners.values() if not is_private(x) and not isinstance(x, type)]
    number_of = {id(item): n for n, (item, _) in enumerate(found.objects)}
    kinds = [kind for _, kind in found.objects]
    tables = {n: Table(name_of(kind), ".{}") for n, kind in enumerate(kinds) if has_attributes(kind)}
    for (key, name), value in reads.attributes.items():
        number = number_of.get(key)
        if number is not None and number in tables and (id(attributes_of(reads.owners[key])), name) not in lifted:
            tables[number].add(name, value)
    found.tables = list(tables.items())
    classes: dict[int, tuple[type, Table]] = {}
    for (key, name), (kind, value) in reads.class_attributes.items():
        if not (is_private(kind) or (key, name) in lifted):
            classes.setdefault(key, (kind, Table(name_of(kind), ".{}")))[1].add(name, value)
    found.class_tables = list(classes.values())
    spaces: dict[int, tuple[dict[str, Any], Table]] = {}
    for (key, name), (space, value) in reads.namespaces.items():
        if not (is_private(space) or (key, name) in lifted):
            spaces.setdefault(key, (space, Table(reads.labels[key], ".{}")))[1].add(name, value)
    found.dictionaries = list(spaces.values())
    found.cells = [x for key, x in reads.cells.items() if not (is_private(x[0]) or (key, x[1]) in lifted)]
    slots = [(number_of.get(key), descriptor, value) for (key, _), (_, descriptor, value) in reads.descriptors.items()]
    found.descriptors = [(number, descriptor, value) for number, descriptor, value in slots if number is not None]
    found.asked = {f: x for f, x in reads.asked.items() if not (isinstance(f, NamesOf) and is_private(f.item))}
    found.roots = [root for root in reads.roots if not is_private(root)]
    return found
