"""The namespace of built-in names, which every code reads behind its global variables, and what of it is Python's."""

from __future__ import annotations

import builtins
from types import BuiltinFunctionType
from typing import Any

BUILT_IN: Any = vars(builtins)
"""Every namespace of code holds it."""
OF_PYTHON = frozenset(("__builtins__", "__loader__", "__spec__", "__cached__"))
"""What Python itself keeps in a namespace."""


_CONSTANTS = frozenset(("True", "False", "None", "NotImplemented", "Ellipsis"))


def _is_pythons(name: str, value: Any) -> bool:
    if name.startswith("__") or name in _CONSTANTS or type(value).__module__ == "_sitebuiltins":
        return True
    return isinstance(value, BuiltinFunctionType | type) and value.__module__ in ("builtins", "io", "_io")


_PYTHONS = frozenset(name for name, value in BUILT_IN.items() if _is_pythons(name, value))


def is_put_into_builtins(name: str) -> bool:
    """Whether somebody has put something under a name there that is none of Python's own."""
    return name in BUILT_IN and name not in _PYTHONS
