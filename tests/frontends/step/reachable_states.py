"""Worlds of steps: of all that can be reached, or of what a call of the step reads."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from typing import Any

from dovetail.frontends.step.reachable_state import ReachableState
from dovetail.reach.names import Names
from dovetail.reach.values import own_of
from dovetail.reach.watcher import noted_reads

_OF_EVERY_CLASS = frozenset(("__dict__", "__weakref__", "__doc__", "__module__", "__slots__"))


class _AllCode(set[Any]):
    def __contains__(self, _: object) -> bool:
        return True


class Everything(Names):
    """As if code read whatever it can reach."""

    def __init__(self) -> None:
        super().__init__()
        self.codes = _AllCode()

    def of_objects(self, kind: type) -> None:
        return None

    def of_class(self, owner: type) -> AbstractSet[str]:
        return frozenset(own_of(owner)) - _OF_EVERY_CLASS

    def of_module(self, name: str) -> AbstractSet[str]:
        module = sys.modules.get(name)
        return frozenset() if module is None or hasattr(module, "__file__") else frozenset(vars(module))


def reachable_state_of(step: Callable[..., Any], arguments: Iterable[Any] = (), extra: Any = ()) -> ReachableState:
    """The reachable state of a step, of all that it can reach."""
    return ReachableState(step, Everything(), tuple(arguments), extra)


def names_read_by(step: Callable[..., Any], *arguments: Any) -> Names:
    """What a step reads in a call. Errors of its own are swallowed."""
    read = Names()
    with contextlib.suppress(Exception), noted_reads([step, *arguments]) as reads:
        step(*arguments)
    read.add(reads)
    return read
