"""What the slots of a step hold otherwise than before."""

from __future__ import annotations

import random
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from dovetail.frontends.step.containers import Container, Slot
from dovetail.frontends.step.walk import Walk
from dovetail.reach.contents import MISSING
from dovetail.reach.values import PLAIN, RANDOM_SOURCES, is_a, is_same, plain_key
from dovetail.torch_compat.traced_numbers import as_plain


@dataclass(frozen=True, slots=True)
class Change:
    """A slot that holds another object than before. old, new: MISSING where there was, or is, none.

    slot: None for what is not a slot: the order of a dictionary, what is in a set, the class of an object, a random
    generator. item: the container, object or generator then.
    """

    slot: Slot | None
    label: str
    old: Any
    new: Any
    item: Any = None

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
        gone = [
            Change(None, container.title, x, MISSING, container.item) for key, x in before.items() if key not in after
        ]
        return gone + [
            Change(None, container.title, MISSING, x, container.item) for key, x in after.items() if key not in before
        ]
    old = {_token(key): (key, value) for key, value in zip(container.keys, container.values, strict=True)}
    new = {_token(key): (key, value) for key, value in zip(keys, values, strict=True)}
    found = []
    for token, (key, _) in {**old, **new}.items():
        before, after = old.get(token, (None, MISSING))[1], new.get(token, (None, MISSING))[1]
        if not is_same(before, after):
            found.append(Change(Slot(container, key), _label(container, key, walk), before, after))
    if list(new) != [*(token for token in old if token in new), *(token for token in new if token not in old)]:
        found.append(Change(None, container.title, list(container.keys), keys, container.item))
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
