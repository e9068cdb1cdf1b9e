"""Copies and pickles of what is compiled: the target and the options, to be compiled anew where they are called.

Functions are pickled by their names. A name that a decorator has bound to what is compiled stands for that.
"""

from __future__ import annotations

import importlib
import operator
import sys
from collections.abc import Callable
from typing import Any


def reduced(compiled: object, target: object, make: Callable[..., Any], *args: Any) -> tuple[Callable[..., Any], Any]:
    """For `__reduce__`: what makes another like `compiled`. target: what is compiled. make: called with args."""
    module, name = getattr(target, "__module__", None), getattr(target, "__qualname__", None)
    if isinstance(module, str) and isinstance(name, str):
        try:
            found = operator.attrgetter(name)(sys.modules[module])
        except (AttributeError, KeyError):  # it is local to a function
            found = None
        if found is compiled:
            return _named, (module, name)
    return make, args


def _named(module: str, name: str) -> Any:
    return operator.attrgetter(name)(importlib.import_module(module))
