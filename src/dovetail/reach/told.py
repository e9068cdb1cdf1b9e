"""What a guard says of what is not as it was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dovetail.reach.contents import MISSING
from dovetail.reach.values import PLAIN, name_of


def name_of_function(function: Callable[[], Any]) -> str:
    """What a question is called."""
    return getattr(function, "__qualname__", str(function))


def told(label: str, old: Any = MISSING, new: Any = MISSING) -> str:
    """That something has changed, and how, where its values are plain. label: what a user would write for it."""
    change = "" if old is MISSING or type(old) not in PLAIN else f": {_short(old)} -> {_short(new)}"
    return f"{label} changed{change}"


def _short(value: Any) -> str:
    text = repr(value) if type(value) in PLAIN else f"a {name_of(type(value))}"
    return text if len(text) <= 60 else f"{text[:57]}..."
