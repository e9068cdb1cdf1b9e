"""What the slots of a step hold otherwise than before."""

from __future__ import annotations

import random
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Collection, Hashable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import torch

from dovetail.frontends.step.containers import Container, Sequential, Slot, Unordered
from dovetail.frontends.step.hook_tables import HookTable
from dovetail.frontends.step.number_slots import NUMBERS
from dovetail.frontends.step.value_walk import OPTIMIZER, SCHEDULER
from dovetail.frontends.step.walk import Walk
from dovetail.reach.contents import MISSING
from dovetail.reach.values import LOOKED_INTO, PLAIN, RANDOM_SOURCES, built_in_base, is_a, is_same, kind_of, plain_key
from dovetail.torch_compat.traced_numbers import as_plain, is_traced

_CONTAINERS = (list, deque, dict, defaultdict, OrderedDict, Counter)
_FILLED = (list, deque, dict, defaultdict, OrderedDict, set)


@dataclass(frozen=True, slots=True)
class Change:
    """A slot that holds another object than before. old, new: MISSING where there was, or is, none.

    slot: None for what is not a slot: the order of a dictionary, what is in a set, the class of an object, a random
    generator. item: the container, object or generator then. whole: that container, as it was looked at.
    """

    slot: Slot | None
    label: str
    old: Any
    new: Any
    item: Any = None
    whole: Container | None = None

    @property
    def container(self) -> Container | None:
        """The container that holds something else, or in another order."""
        return self.whole if self.slot is None else self.slot.container

    @property
    def is_draw(self) -> bool:
        """Whether a random generator of Python or NumPy moved."""
        return self.slot is None and (self.item is random or self.item is np.random or is_a(self.item, RANDOM_SOURCES))


def changes_in(container: Container, walk: Walk) -> list[Change]:
    """What a container holds otherwise than when it was looked at."""
    keys, values = container.now()
    keys = list(map(as_plain, keys))  # of a dictionary, which has asked for the numbers that are keys
    if container.kind == "set":
        before, after = _by_identity(container.values), _by_identity(values)
        pairs = [(x, MISSING) for key, x in before.items() if key not in after]
        pairs += [(MISSING, x) for key, x in after.items() if key not in before]
        return [Change(None, container.title, old, new, container.item, container) for old, new in pairs]
    old = {_token(key): (key, value) for key, value in zip(container.keys, container.values, strict=True)}
    new = {_token(key): (key, value) for key, value in zip(keys, values, strict=True)}
    found = []
    for token, (key, _) in {**old, **new}.items():
        before, after = old.get(token, (None, MISSING))[1], new.get(token, (None, MISSING))[1]
        if not is_same(before, after):
            found.append(Change(Slot(container, key), _label(container, key, walk), before, after))
    if list(new) != [*(token for token in old if token in new), *(token for token in new if token not in old)]:
        found.append(Change(None, container.title, list(container.keys), keys, container.item, container))
    return found


def _label(container: Container, key: Any, walk: Walk) -> str:
    """What a user would write for a slot, that of a key which was not there before included."""
    slot = walk.first_slot(key) if is_a(key, torch.Tensor) and id(key) not in container.names else None
    return container.label_of(key) if slot is None else f"{container.title}[{slot.label}]"


def _by_identity(items: list[Any]) -> dict[Hashable, Any]:
    return {_token(item): item for item in items}


def _token(key: Any) -> Hashable:
    """A key that stands for a key, without running code of the user's."""
    return plain_key(key) if type(key) in PLAIN else id(key)


def holds_the_same(old: Any, new: Any, depth: int = 8) -> bool:
    """Whether a container was replaced by another one of Python's own that holds the same, no deeper than `depth`."""
    if is_same(old, new):
        return True
    if type(old) is not type(new) or type(old) not in (dict, list, tuple, set) or len(old) != len(new) or not depth:
        return False
    if type(old) is set:
        return set(map(id, old)) == set(map(id, new))
    pairs = zip(old.values(), new.values(), strict=True) if type(old) is dict else zip(old, new, strict=True)
    is_keyed_alike = type(old) is not dict or all(map(is_same, old, new))
    return is_keyed_alike and all(holds_the_same(a, b, depth - 1) for a, b in pairs)


def differs_beyond(inputs: Collection[tuple[int, ...]], old: Any, new: Any, at: tuple[int, ...] = ()) -> bool:
    """Whether a value differs from an old one in more than parts of tuples that are inputs."""
    if at in inputs:
        return False
    if is_a(old, tuple) and type(old) is type(new) and len(old) == len(new):
        return any(differs_beyond(inputs, a, b, (*at, n)) for n, (a, b) in enumerate(zip(old, new, strict=True)))
    return not is_same(old, new)


def is_put(change: Change) -> bool:
    """Whether something was put into a container that is not simply another number, or its order is another one."""
    slot, container = change.slot, change.container
    if container is None or built_in_base(type(container.item)) not in _FILLED or container.link != "item":
        return False
    if type(container) not in (Container, Sequential, Unordered) or container.rank in (OPTIMIZER, SCHEDULER):
        return False
    return slot is None or not (is_plain(change.old) and (is_plain(change.new) or is_traced(change.new)))


def can_be_bound(change: Change) -> bool:
    """Whether a run can put what is new into a slot, and later calls can look at it there."""
    slot = change.slot
    if slot is None or isinstance(slot.container, HookTable):
        return False
    if change.new is MISSING:
        return can_be_removed(slot)
    if change.old is MISSING:
        return slot.kind == "names" and (is_traced(change.new) or _is_compared(change.new))
    if kind_of(type(change.new)) in LOOKED_INTO and is_plain(change.old):  # what was open is decided
        return False
    return _is_compared(change.old) and (is_traced(change.new) or _is_compared(change.new))


def can_be_removed(slot: Slot) -> bool:
    """Whether a run can take away an attribute, a variable, or an entry of an optimizer's state."""
    container = slot.container
    if isinstance(container, HookTable) or container.rank == SCHEDULER:
        return False
    is_of_attributes = slot.kind == "dict" and (container.link != "item" or container.rank == OPTIMIZER)
    return slot.kind == "names" or is_of_attributes


def _is_compared(value: Any) -> bool:
    """Whether guards compare what a slot holds, so that a run may leave it there."""
    is_container = (
        isinstance(value, tuple) or type(value) in (list, dict, OrderedDict) or kind_of(type(value)) in LOOKED_INTO
    )
    return is_container or isinstance(value, torch.Tensor | Enum | torch.dtype | torch.device) or is_plain(value)


def is_plain(value: Any) -> bool:
    """Whether guards compare a value by what it is."""
    return type(value) in (bool, *NUMBERS, str, bytes, complex, type(None))
