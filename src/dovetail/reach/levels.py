"""Values compared level by level: a guard asks built-in iterators about thousands of them at once.

A level holds values side by side: plain ones, which count by value, containers, which count by what they hold, and
other objects, of which only the identity counts. What the containers of one level hold is the next level. A level is
usually one comparison of identities; only where an identity differs are values compared one by one. What a program
takes as an input, or what holds inputs, is one of `dovetail.reach.expected_values`.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, compress
from operator import itemgetter
from types import FunctionType
from typing import Any

import numpy as np
import torch

from dovetail.reach.contents import (
    MISSING,
    Snapshot,
    base_of,
    counts_by_value,
    is_equal,
    is_plain,
    parts_of,
)
from dovetail.reach.expected_values import STAND_INS, can_change, fits, is_new
from dovetail.reach.memory_words import NotInWords, Place, WordList, in_slot_at
from dovetail.reach.values import holds_more, is_a
from dovetail.torch_compat.fakes import is_fake

_MUTABLE = (set, bytearray, np.ndarray)


class Values:
    """Values side by side, of which none is looked into.

    watched: those that count by identity. Nothing is kept alive by that: whoever makes this watches them, and lets them
    go then (`forget`).
    """

    __slots__ = (
        "_changing",
        "_expected",
        "_ids",
        "_inputs",
        "_now",
        "_pick_inputs",
        "_pick_rest",
        "_places",
        "watched",
    )

    def __init__(self, expected: Sequence[Any], *, keeps_tuples: bool = False) -> None:
        """Expect these, or what stands for them.

        keeps_tuples: they stay alive, and others with the same parts are as good.
        """
        inputs = [n for n, x in enumerate(expected) if is_a(x, STAND_INS)]
        self._inputs = [expected[n] for n in inputs]
        self._places: Sequence[int] = range(len(expected))
        if inputs:
            self._places = [n for n in self._places if n not in set(inputs)]
            self._pick_inputs, self._pick_rest = picker(inputs), picker(self._places)
            expected = [expected[n] for n in self._places]
        self._changing = [n for n, x in enumerate(self._inputs) if can_change(x)]
        self._ids = list(map(id, expected))
        self._expected = [x if counts_by_value(x) or (keeps_tuples and is_a(x, tuple)) else _OTHER for x in expected]
        self.watched: Sequence[Any] = [x for x, kept in zip(expected, self._expected, strict=True) if kept is _OTHER]

    def forget(self) -> None:
        """Keep nothing alive any more that counts by identity."""
        self.watched = ()

    def are(self, values: Sequence[Any]) -> bool:
        """Whether these are as expected."""
        if self._inputs:
            if not all(map(fits, self._inputs, self._pick_inputs(values))):
                return False
            values = self._pick_rest(values)
        return list(map(id, values)) == self._ids or self._are_equal(values)

    def changing(self, values: Sequence[Any]) -> Iterable[Any]:
        """What code can change of those that are inputs, or that hold some."""
        if not self._changing:
            return ()
        inputs = self._pick_inputs(values)
        return chain.from_iterable(self._inputs[n].changing(inputs[n]) for n in self._changing)

    def difference(self, values: Sequence[Any]) -> tuple[int, Any, Any] | None:
        """The place of the first value that is not as expected; what was expected, MISSING if unknown; the value."""
        for n, place in enumerate(self._places):
            if id(values[place]) != self._ids[n] and not is_equal(self._expected[n], values[place]):
                return place, MISSING if self._expected[n] is _OTHER else self._expected[n], values[place]
        if self._inputs:
            rest = [n for n in range(len(values)) if n not in set(self._places)]
            for place, expected in zip(rest, self._inputs, strict=True):
                if not expected.fits(values[place]):
                    return place, MISSING, values[place]
        return None

    def put_into(self, words: WordList, slots: Sequence[Place]) -> None:
        """Let words show whether values are as expected. slots: where each is; None where other words show it.

        Raises: NotInWords where nothing tells where something is that is new in each call.
        """
        for n, place in enumerate(self._places):
            slot = slots[place]
            if isinstance(slot, int):
                is_other = self._expected[n] is _OTHER
                words.add_slot(slot, self._ids[n], None if is_other else partial(self._equal_at, n, slot))
        if self._inputs:
            self._now = list(self._inputs)
            for n, place in enumerate(self._pick_inputs(range(len(slots)))):
                slot = slots[place]
                if is_new(self._inputs[n]):
                    words.look_into(self._inputs[n], slot)
                elif isinstance(slot, int):
                    words.add(slot, 0, partial(self._input_at, n, slot))

    def _equal_at(self, number: int, slot: int) -> int | None:
        value = in_slot_at(slot)
        if not is_equal(self._expected[number], value):
            return None
        self._expected[number], self._ids[number] = value, id(value)
        return id(value)

    def _input_at(self, number: int, slot: int) -> int | None:
        value = in_slot_at(slot)
        if not fits(self._inputs[number], value):
            return None
        self._now[number] = value  # else another object may come to be at its address
        return id(value)

    def _are_equal(self, values: Sequence[Any]) -> bool:
        ids = self._ids
        changed = [n for n, value in enumerate(values) if id(value) != ids[n]]
        if not all(is_equal(self._expected[n], values[n]) for n in changed):
            return False
        for n in changed:
            self._expected[n] = values[n]
            ids[n] = id(values[n])
        return True


class _Group:
    """Containers of one kind among the values of a level."""

    def __init__(self, base: Any, places: Sequence[int], containers: Sequence[Any], snapshot: Snapshot) -> None:
        self.base = base
        self.places = places
        self.pick = picker(places)
        self.types = list(map(type, containers))
        held = [snapshot.held(item) for item in containers]
        self.counts = [len(items) for _, items in held]
        self.tags = [tag[0] for tag, _ in held if tag is not None]
        self._parts = [parts_of(item) for item in containers] if base is None else []
        self._limits = [item.maxlen for item in containers] if base is deque else []
        self.is_table = base is dict or base is OrderedDict
        self.is_mutable = [base not in (None, tuple) or is_a(item, _MUTABLE) for item in containers]
        self._is_empty = set(self.types) == {base} and not any(self.counts)
        # what holds attributes besides counts by identity as well, and is kept alive
        self._themselves = [(n, item) for n, item in enumerate(containers) if holds_more(item)]

    def look(self, found: Sequence[Any], met: list[Any]) -> list[Any] | None:
        """What the containers hold now; None where that is not as many things of the same kinds.

        met: gets the containers that code can change.
        """
        base = self.base
        met += compress(found, self.is_mutable)
        if list(map(type, found)) != self.types or any(found[n] is not item for n, item in self._themselves):
            return None
        if base is None:
            parts = [look(item) for look, item in zip(self._parts, found, strict=True) if look is not None]
            if [tag for tag, _ in parts] != self.tags or [len(items) for _, items in parts] != self.counts:
                return None
            return list(chain.from_iterable(items for _, items in parts))
        if self._limits and [item.maxlen for item in found] != self._limits:
            return None
        if self._is_empty:
            return None if any(found) else []
        if self.is_table:
            if [2 * n for n in map(base.__len__, found)] != self.counts:
                return None
            return [*chain.from_iterable(map(base.keys, found)), *chain.from_iterable(map(base.values, found))]
        if list(map(base.__len__, found)) != self.counts:
            return None
        return list(chain.from_iterable(map(base.__iter__, found)))

    def put_into(self, words: WordList, found: Sequence[Any], slots: Sequence[Place]) -> list[Place]:
        """Let words show whether containers hold as many things of the same kinds; gives where these are, in the order
        of `look`. slots: where the containers are. Raises: NotInWords.
        """
        if self.base is None and not all(self._parts):
            raise NotInWords
        for slot, item in zip(slots, found, strict=True):
            if isinstance(slot, int):
                words.add_slot(slot, id(item))
        if self.base is None:
            return list(chain.from_iterable(map(words.slots_of, found)))
        held = [words.open(item, self.base, count) for item, count in zip(found, self.counts, strict=True)]
        return list(chain.from_iterable(held))

    def before(self, containers: Sequence[Any], snapshot: Snapshot) -> Iterator[tuple[int, Any]]:
        """What the containers held, each with the place of its container, in the order of `look`."""
        held = [(place, snapshot.held(item)[1]) for place, item in zip(self.places, containers, strict=True)]
        if self.is_table:
            yield from ((place, x) for place, items in held for x in items[: len(items) // 2])
            yield from ((place, x) for place, items in held for x in items[len(items) // 2 :])
        else:
            yield from ((place, x) for place, items in held for x in items)


class Level:
    """Values side by side, and what is expected of the containers among them; see the module docstring."""

    def __init__(
        self, values: Sequence[Any], roots: Sequence[int], snapshot: Snapshot, seen: set[int], opened: int, kept: bool
    ) -> None:
        """Expect these.

        roots: the number of what leads to each. seen: containers that are compared elsewhere. opened: from which place
        on values are containers that are compared here, whether they were seen or not. kept: tuples, see `Values`.
        """
        groups: dict[Any, list[int]] = {}
        leaves: list[int] = []
        for place, value in enumerate(values):
            if is_a(value, torch.Tensor) and is_fake(value):
                continue  # it stands for an input of the program, which is looked at as such
            if place >= opened or (snapshot.has(value) and id(value) not in seen):
                seen.add(id(value))
                groups.setdefault(base_of(value), []).append(place)
            else:
                leaves.append(place)
        expected = [values[place] for place in leaves]
        self._roots = list(roots)
        self._places = leaves
        self._is_flat = len(leaves) == len(values)
        self._pick = picker(leaves)
        self._leaves = Values(expected, keeps_tuples=kept)
        self._tensors = [n for n, x in enumerate(expected) if is_a(x, torch.Tensor)]
        self.tensors = [expected[n] for n in self._tensors]
        self._groups = [_Group(base, at, [values[p] for p in at], snapshot) for base, at in groups.items()]
        self.changing = [x for group in self._groups for x in compress(group.pick(values), group.is_mutable)]
        elements = [x for at in groups.values() for p in at if is_a(values[p], (set, frozenset)) for x in values[p]]
        functions = [values[p] for at in groups.values() for p in at if is_a(values[p], FunctionType)]
        self.watched = [*self._leaves.watched, *(x for x in (*elements, *functions) if not is_plain(x))]
        self.below = [
            (roots[place], held)
            for group in self._groups
            for place, held in group.before([values[p] for p in group.places], snapshot)
        ]

    def forget(self) -> None:
        """Keep no object alive any more that is compared by identity."""
        self.watched, self.tensors, self.below, self.changing = [], [], [], []
        self._leaves.forget()

    def look(self, values: Sequence[Any], tensors: list[Any], met: list[Any]) -> list[Any] | None:
        """What the containers among values hold, if all are as expected; else None.

        tensors: gets those among the values, whose sizes and the like are for others to judge. met: gets the containers
        that code can change.
        """
        leaves = values if self._is_flat else self._pick(values)
        if not self._leaves.are(leaves):
            return None
        met += self._leaves.changing(leaves)
        if self._tensors:
            tensors += [leaves[n] for n in self._tensors]
        below: list[Any] = []
        for group in self._groups:
            held = group.look(group.pick(values), met)
            if held is None:
                return None
            below += held
        return below

    def put_into(self, words: WordList, values: Sequence[Any], slots: Sequence[Place]) -> list[Place]:
        """Let words show whether values are as expected; gives where what `look` gives is. Raises: NotInWords.

        slots: where each value is; None where other words show that it is the same.
        """
        self._leaves.put_into(words, [slots[place] for place in self._places])
        below: list[Place] = []
        for group in self._groups:
            below += group.put_into(words, group.pick(values), [slots[place] for place in group.places])
        return below

    def difference(self, values: Sequence[Any]) -> tuple[int, Any, Any] | None:
        """The number of what leads to the first value that is not as expected, what was expected, and the value."""
        found = self._leaves.difference(self._pick(values))
        if found is not None:
            place, old, new = found
            return self._roots[self._places[place]], old, new
        for group in self._groups:
            if group.look(group.pick(values), []) is None:
                return self._roots[group.places[0]], MISSING, MISSING
        return None


def levels_of(
    values: Sequence[Any],
    snapshot: Snapshot,
    containers: Sequence[Any] = (),
    elsewhere: Iterable[Any] = (),
    *,
    keeps_tuples: bool = False,
) -> list[Level]:
    """The levels of values, the first for the values themselves.

    containers: stand behind the values, and are compared there; wherever else they are met, they count by identity, as
    those that are compared elsewhere do. keeps_tuples: see `Values`.
    """
    levels, seen = list[Level](), {*map(id, containers), *map(id, elsewhere)}
    below = list(enumerate((*values, *containers)))
    while below:
        opened = len(below) if levels else len(values)
        level = Level([x for _, x in below], [root for root, _ in below], snapshot, seen, opened, keeps_tuples)
        levels.append(level)
        below = level.below
    return levels


def picker(places: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """A function that takes items at places out of a sequence."""
    if len(places) > 1:
        return itemgetter(*places)
    return lambda items: [items[place] for place in places]


_OTHER = object()
