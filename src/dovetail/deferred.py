"""Modules that are imported when they are first used.

A process that loads a frozen program and calls it needs a small part of dovetail; recording, searching for schedules
and writing graphs are not among it. A module names what it seldom needs like this:

    if TYPE_CHECKING:
        from dovetail.inspect import drawing
    else:
        drawing = deferred("dovetail.inspect.drawing")

Rules about who imports whom hold for these imports as for all others: `tests/architecture.py` reads both branches.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType


class _Deferred(ModuleType):
    """Stands for a module: its first attribute that is asked for imports it."""

    def __getattr__(self, name: str) -> object:
        return getattr(import_module(self.__name__), name)


def deferred(name: str) -> ModuleType:
    """What stands for the module of this name. Every attribute is the module's own, also where it is replaced."""
    return _Deferred(name)
