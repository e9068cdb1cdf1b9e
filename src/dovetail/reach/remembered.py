"""What a function does once, because `lru_cache` remembers that it was called."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Collection, Iterator
from types import CodeType, FrameType
from typing import Any

_CACHED: Any = type(functools.lru_cache(len))


def is_remembered(frame: FrameType | None, outside: Collection[FrameType]) -> bool:
    """Whether this frame, or one that it was called from, is a call that a cache remembers. outside: where to stop."""
    inside = itertools.takewhile(lambda each: each not in outside, callers(frame))
    return any(isinstance(_named(each), _CACHED) for each in inside)


def callers(frame: FrameType | None) -> Iterator[FrameType]:
    """A frame and all that it was called from."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def _named(frame: FrameType) -> Any:
    """What the name of a frame's function stands for in its module, if that wraps the function; else None."""
    code = frame.f_code
    first, *others = code.co_qualname.split(".")
    found = frame.f_globals.get(first)
    for name in others:
        found = vars(found).get(name) if isinstance(found, type) else None
    return found if _code_of(found) is code else None


def _code_of(found: Any) -> CodeType | None:
    return getattr(inspect.unwrap(found), "__code__", None) if isinstance(found, _CACHED) else None
