"""What a step's code reads or changes outside Python's objects, and no program can repeat.

The clock, files, pickles, functions that remember their results: while a step is recorded, such calls by the user's
code are refused, or answered, each with the line that made it. Calls by torch's and Python's own code are allowed.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import gc
import os
import pickle
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from dovetail.capture.origins import OriginTracker
from dovetail.errors import DovetailError, UnsupportedStep
from dovetail.frontends.step.containers import Slot
from dovetail.ir.provenance import is_library_file
from dovetail.reach.contents import Snapshot
from dovetail.reach.values import PLAIN
from dovetail.torch_compat.fakes import is_fake

_CLOCK = ("reads the time", "the program would keep the answer of its first run", "do so outside the step")
_RANDOM = ("reads random bytes", "the program would keep those of its first run", "do so outside the step")
_FILE = (
    "opens a file",
    "it would be opened once, while the step is captured, and never again",
    "do so outside the step",
)
_SAVE = ("saves or loads objects", "tensors have no data while the step is captured", "do so after the step")
_DUMPS = pickle.dumps
_REFUSED: tuple[tuple[Any, tuple[str, ...], tuple[str, str, str]], ...] = (
    (
        time,
        tuple(
            f"{name}{unit}" for name in ("time", "monotonic", "perf_counter", "process_time") for unit in ("", "_ns")
        ),
        _CLOCK,
    ),
    (os, ("urandom",), _RANDOM),
    (uuid, ("uuid1", "uuid4"), _RANDOM),
    (builtins, ("open", "input"), _FILE),
    (pickle, ("dump", "dumps", "load", "loads"), _SAVE),
    (torch, ("save", "load"), _SAVE),
)


class Outside:
    """Refuses, while it is active, what no program repeats.

    refusals: every error that was raised. to_fill: those of them that say that a function will remember a result; once
    it was called in eager mode it does.
    """

    def __init__(self, origins: OriginTracker, slots: Sequence[Slot], is_data: Callable[[Any], bool]) -> None:
        """slots: slots of what the step's code reaches. is_data: whether a text, or one in a value, tells data."""
        self.refusals: list[DovetailError] = []
        self.to_fill: list[DovetailError] = []
        self._origins = origins
        self._is_data = is_data
        self._slots = slots
        self._thread = threading.get_ident()

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """While active, calls by code of the user's in this thread are refused. Places are put back by others."""
        with contextlib.ExitStack() as stack:
            instead: dict[int, Callable[..., Any]] = {}
            for owner, names, reason in _REFUSED:
                for name in names:
                    function = getattr(owner, name)
                    instead[id(function)] = stub = self._refusing(function, reason)
                    stack.callback(setattr, owner, name, function)
                    setattr(owner, name, stub)
            for slot in self._slots:
                held = slot.read()
                if id(held) in instead:
                    stack.callback(slot.write, held)
                    slot.write(instead[id(held)])
            yield

    def _refusing(self, function: Callable[..., Any], reason: tuple[str, str, str]) -> Callable[..., Any]:
        what, why, hint = reason

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            is_ours = threading.get_ident() == self._thread
            if not is_ours or is_library_file(sys._getframe(1).f_code.co_filename):
                return function(*args, **kwargs)
            if function is _DUMPS and args and _is_plain(args[0]) and not self._is_data(args[0]):
                return function(*args, **kwargs)
            error = UnsupportedStep(what=what, why=why, hint=hint, origin=self._origins.here())
            self.refusals.append(error)
            raise error

        return call

    # --- functions that remember ------------------------------------------------------------------------------

    @contextlib.contextmanager
    def known_results_only(self, caches: Iterable[Slot]) -> Iterator[None]:
        """While active, functions that remember their results do not come to know more of them."""
        held = [(slot, slot.read()) for slot in caches]
        try:
            for slot, function in held:
                with contextlib.suppress(TypeError):
                    slot.write(self._remembering(function, slot.label))
            yield
        finally:
            for slot, function in held:
                with contextlib.suppress(TypeError):
                    slot.write(function)

    def _remembering(self, function: Any, label: str) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() == self._thread and not _remembers(function, args, kwargs):
                error = UnsupportedStep(
                    what=f"calls {label}, which remembers its results, with arguments that are new in this call",
                    why="it would remember tensors without data",
                    hint="call it once before the step, or without functools.lru_cache",
                    origin=self._origins.here(),
                )
                self.refusals.append(error)
                self.to_fill.append(error)
                raise error
            return function(*args, **kwargs)

        return call


def _is_plain(item: Any) -> bool:
    """Whether a value is nothing but lists, dictionaries and the like of Python's own, and plain values in them."""
    if type(item) is dict:
        return all(map(_is_plain, item)) and all(map(_is_plain, item.values()))
    return all(map(_is_plain, item)) if type(item) in (list, tuple, set, frozenset) else type(item) in PLAIN


def forget_new_results(functions: Iterable[Any], before: Snapshot) -> None:
    """Let functions that remember results, and were not known while recording, forget those of the recording.

    before: what they remembered. One that remembered something forgets that as well, but only if some are fakes.
    """
    for function in functions:
        was_empty = before.has(function) and before.held(function)[0] == (0, (function.__wrapped__,))
        if was_empty or _holds_fakes(function):
            function.cache_clear()


def _holds_fakes(function: Any) -> bool:
    met: dict[int, Any] = {id(function): function}
    left = [function]
    while left:
        inner = [x for x in gc.get_referents(left.pop()) if id(x) not in met]
        if any(isinstance(x, torch.Tensor) and is_fake(x) for x in inner):
            return True
        met.update((id(x), x) for x in inner)
        left += [x for x in inner if type(x) in (dict, list, tuple)]
    return False


def _remembers(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether `functools.lru_cache` knows the result of a call already."""
    held = gc.get_referents(function)
    table = next(x for x in held if type(x) is dict and x is not function.__dict__)
    key: Any = args
    if kwargs:
        mark = next(x for x in held if type(x) is object)
        key += (mark, *(part for pair in kwargs.items() for part in pair))
    if function.cache_parameters()["typed"]:
        key += tuple(map(type, (*args, *kwargs.values())))
    elif len(key) == 1 and type(key[0]) in (int, str):
        key = key[0]
    try:
        return key in table
    except TypeError:
        return False
