"""Entries of many dictionaries, compared at the price of one question for each dictionary that did not change.

Most entries count by identity, or by a plain value: while a dictionary has the version that it had when it was compared
last, they are as they were. Before Python 3.12 dictionaries have versions; later, all entries are compared each time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain, compress, count, repeat
from operator import ne
from typing import Any

from dovetail.reach.contents import MISSING
from dovetail.reach.expected_values import Anything, is_new
from dovetail.reach.guarded import Table
from dovetail.reach.levels import Values, picker
from dovetail.reach.memory_words import WordList
from dovetail.reach.values import is_a
from dovetail.torch_compat.guards import version_of_dict


def shows_all(item: Any) -> bool:
    """Whether a change of anything in a container, of the order as well, shows in a version."""
    return version_of_dict is not None and is_a(item, dict) and not is_a(item, OrderedDict)


class Tables:
    """What is expected of the entries of dictionaries.

    others: values that are to be looked at in each call, with their labels.
    """

    def __init__(self, tables: Sequence[Table], is_other: Callable[[Any], bool], *, keeps_tuples: bool) -> None:
        """is_other: whether a value is to be looked at in each call. keeps_tuples: see `Values`."""
        self._entries = [_Entries(table, is_other, keeps_tuples) for table in tables]
        self._versions: list[int] = []
        others = [
            (number, name, value, table.label(name))
            for number, table in enumerate(tables)
            for name, value in zip(table.names, table.values, strict=True)
            if (is_new(value) if table.is_whole else is_other(value))
        ]
        self.others = [(value, label) for *_, value, label in others]
        self._other_places = [(number, name) for number, name, *_ in others]
        self._are_new = [is_new(value) for *_, value, _ in others]
        self._pick_others, self._other_names = picker([n for n, *_ in others]), [name for _, name, *_ in others]
        self._flat: Values | None = None
        if version_of_dict is None:
            self._pick_all = picker([n for n, entries in enumerate(self._entries) for _ in entries.names])
            self._names = [name for entries in self._entries for name in entries.names]
            self._flat = Values([x for entries in self._entries for x in entries.before], keeps_tuples=keeps_tuples)

    @property
    def watched(self) -> list[Any]:
        """See `Values`."""
        return [x for entries in self._entries for x in entries.values.watched]

    def forget(self) -> None:
        """See `Values`."""
        self.others = []
        for entries in self._entries:
            entries.forget()
        if self._flat is not None:
            self._flat.forget()

    def are_as_before(self, dicts: Sequence[dict[Any, Any]]) -> bool:
        """Whether entries that are not for others to look at are as before."""
        if version_of_dict is None:
            assert self._flat is not None, "dictionaries have no versions"
            return self._flat.are(list(map(dict.get, self._pick_all(dicts), self._names, repeat(MISSING))))
        versions = list(map(version_of_dict, dicts))
        if versions == self._versions:
            return True
        moved: Any = compress(count(), map(ne, versions, self._versions or repeat(None)))
        for number in moved:
            if not self._entries[number].are_in(dicts[number]):
                return False
        self._versions = versions
        return True

    def difference(self, dicts: Sequence[dict[Any, Any]]) -> tuple[str, Any, Any] | None:
        """What is not as before: its label, what was there, MISSING if unknown, and what is."""
        found = (entries.difference(table) for entries, table in zip(self._entries, dicts, strict=True))
        return next(filter(None, found), None)

    def put_into(self, words: WordList, tables: Sequence[Callable[[], dict[Any, Any]]]) -> None:
        """Let words show whether entries are as before, and `others` the same, but for what is new in each call.

        tables: what gives the dictionaries.
        """
        others: dict[int, list[tuple[Any, int]]] = {}
        now = self.found([get() for get in tables])
        for (number, name), value, is_other in zip(self._other_places, now, self._are_new, strict=True):
            if not is_other:
                others.setdefault(number, []).append((name, id(value)))
        for number, get in enumerate(tables):
            words.add_version(get(), partial(self._version, number, get, others.get(number, [])))

    def _version(self, number: int, get: Callable[[], dict[Any, Any]], others: Sequence[tuple[Any, int]]) -> int | None:
        """The version of a dictionary if its entries are as before; None where they are not."""
        assert version_of_dict is not None, "it was asked before"
        table = get()
        version = version_of_dict(table)
        is_as_before = self._entries[number].are_in(table) and all(
            id(dict.get(table, name, MISSING)) == value for name, value in others
        )
        return version if is_as_before else None

    def places(self, dicts: Sequence[dict[Any, Any]]) -> list[Callable[[], Any] | None]:
        """What gives each of `others` that is new in each call; None for the rest."""
        known = zip(self._other_places, self._are_new, strict=True)
        return [partial(dict.get, dicts[n], name, MISSING) if is_one else None for (n, name), is_one in known]

    def found(self, dicts: Sequence[dict[Any, Any]]) -> Sequence[Any]:
        """What `others` are now."""
        if not self._other_names:
            return ()
        return list(map(dict.get, self._pick_others(dicts), self._other_names, repeat(MISSING)))


class _Entries:
    """Entries of one dictionary. before: what they were, until it is forgotten."""

    __slots__ = ("_is_whole", "_label", "before", "names", "values")

    def __init__(self, table: Table, is_other: Callable[[Any], bool], keeps_tuples: bool) -> None:
        pairs = list(zip(table.names, table.values, strict=True))
        if table.is_whole:
            self.names = table.names
            self.before = [*table.names, *(Anything() if is_new(value) else value for value in table.values)]
        else:
            pairs = [(name, value) for name, value in pairs if not is_other(value)]
            self.names, self.before = [name for name, _ in pairs], [value for _, value in pairs]
        self._is_whole = table.is_whole
        self._label = Table(table.title, table.link).label
        self.values = Values(self.before, keeps_tuples=keeps_tuples)

    def forget(self) -> None:
        self.values.forget()
        self.before = []

    def _now(self, table: dict[Any, Any]) -> list[Any]:
        if self._is_whole:
            return [*chain(dict.keys(table), dict.values(table))]
        return list(map(dict.get, repeat(table), self.names, repeat(MISSING)))

    def are_in(self, table: dict[Any, Any]) -> bool:
        if self._is_whole and dict.__len__(table) != len(self.names):
            return False
        return self.values.are(self._now(table))

    def difference(self, table: dict[Any, Any]) -> tuple[str, Any, Any] | None:
        if self._is_whole and dict.__len__(table) != len(self.names):
            return self._label("keys()"), MISSING, MISSING
        found = self.values.difference(self._now(table))
        if found is None:
            return None
        place, old, new = found
        return self._label(self.names[place % len(self.names)]), old, new
