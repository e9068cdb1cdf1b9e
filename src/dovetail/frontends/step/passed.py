"""Objects among the arguments of a call: a batch of a class of the user's, what a tokenizer gives, a model.

A guard looks at slots, and an argument lies in none. The objects that a call is given lie in one list while a program
for it is found, and run if it reads them there: so they are state, which may be other objects in each call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dovetail.frontends.step.containers import Path, Sequential
from dovetail.reach.values import Kind, kind_of

ARGUMENT = "argument_"
_MAY_CHANGE = frozenset((Kind.OBJECT, Kind.DICT, Kind.LIST, Kind.DEQUE))
_LEADS_NOWHERE = (torch.Tensor, bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)


class PassedObjects(Sequential):
    """The container of that list; its slots are called by the numbers of the arguments, which are flat."""

    __slots__ = ()

    def __init__(self, passed: list[Any]) -> None:
        super().__init__(passed, None, None, list)
        self.call_it((), "arguments")

    def path_of(self, key: Any) -> Path:
        return (f"{ARGUMENT}{key}",)

    def label_of(self, key: Any, inner: bool = False) -> str:
        return f"{ARGUMENT}{key}"


def leads_on(leaf: object) -> bool:
    """Whether more than its own value can be reached from an argument."""
    return not isinstance(leaf, _LEADS_NOWHERE)


def is_object(kind: type) -> bool:
    """Whether an argument of a type is an object that another one may take the place of: a container, too, which is
    whole where its class is the user's, or the step changes it.
    """
    return not issubclass(kind, _LEADS_NOWHERE) and kind_of(kind) in _MAY_CHANGE


def pass_objects(passed: list[Any], leaves: Sequence[Any]) -> None:
    """Let a list hold the objects among the arguments of a call, and None for the others; nothing if there are none."""
    has_some = any(map(is_object, set(map(type, leaves))))
    passed[:] = [leaf if is_object(type(leaf)) else None for leaf in leaves] if has_some else []


def is_of_argument(path: Path) -> bool:
    """Whether a slot is reached through an argument."""
    return isinstance(path[0], str) and path[0].startswith(ARGUMENT)
