"""The mark that torch's tools put on functions that take one list of arguments, and empty it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_MARK = "_boxed_call"


def is_boxed(function: object) -> bool:
    """Whether a function takes its arguments as one list, by the mark that it carries."""
    return bool(getattr(function, _MARK, False))


def boxed(function: Callable[..., Any]) -> Callable[[list[Any]], Any]:
    """The function, called with a list, which is emptied; itself when it is boxed already."""
    if is_boxed(function):
        return function

    def call(arguments: list[Any]) -> Any:
        given = tuple(arguments)
        arguments.clear()
        return function(*given)

    setattr(call, _MARK, True)
    call.__wrapped__ = function
    return call
