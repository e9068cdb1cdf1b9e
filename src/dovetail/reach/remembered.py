"""What a function does once, because `lru_cache` remembers that it was called."""

from __future__ import annotations

import functools
import gc
import inspect
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

import torch

from dovetail.torch_compat.fakes import is_fake

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


def forget_fakes(items: Iterable[Any]) -> None:
    """Let functions that remember their results forget tensors without contents: they are called again.

    There is no way to take single results out. items: what was met while such tensors were there.
    """
    for item in items:
        if type(item) is _CACHED and _holds_fakes(item):
            item.cache_clear()


class MakesMemory(Exception):
    """A function begins whose result would be remembered: another call finds it."""


class Memories:
    """Stops where a function begins that remembers its results. met, to be set: what code has met, as it grows."""

    def __init__(self) -> None:
        self.met: Mapping[int, Any] = {}
        self._looked_at = 0
        self._codes: set[CodeType] = set()
        self.has_stopped = False

    def look(self, frame: FrameType, event: str, _: Any) -> None:
        """A frame of the user's begins or ends. Raises: MakesMemory."""
        if len(self.met) > self._looked_at:
            new = itertools.islice(self.met.values(), self._looked_at, None)
            self._codes.update(code for code in map(_code_of, new) if code is not None)
            self._looked_at = len(self.met)
        if event == "call" and frame.f_code in self._codes:
            self.has_stopped = True
            raise MakesMemory


def _holds_fakes(function: Any) -> bool:
    """Whether such a function remembers a tensor without contents, itself or in what holds others."""
    left, seen = [x for x in gc.get_referents(function) if x is not function.__wrapped__], set[int]()
    while left and len(seen) < _MOST:
        item = left.pop()
        if id(item) in seen or isinstance(item, type | FunctionType | ModuleType):
            continue
        seen.add(id(item))
        if isinstance(item, torch.Tensor):
            if is_fake(item):
                return True
        else:
            left += gc.get_referents(item)
    return False


_MOST = 10_000
