"""Standing in for torch's default CPU generator while a program is recorded."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.random


class _OfThisThread:
    """One object to the thread that made it, another one to the others."""

    def __init__(self, mine: Any, theirs: Any) -> None:
        self._choices = (threading.get_ident(), mine, theirs)

    def __getattr__(self, name: str) -> Any:
        thread, mine, theirs = self._choices
        return getattr(mine if threading.get_ident() == thread else theirs, name)


@contextlib.contextmanager
def replaced_default_generator(substitute: Any) -> Iterator[None]:
    """While active, torch's Python functions on the CPU generator state (`get_rng_state`, `fork_rng`,
    `manual_seed`, ...) talk to `substitute`, which needs the methods of `torch.Generator` that they use. Those
    called in other threads do not."""
    before = torch.random.default_generator
    torch.random.default_generator = _OfThisThread(substitute, before)  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.random.default_generator = before


class _RefusedMeta(type):
    """A class that cannot be called; instances of torch's own Generator count as its instances."""

    original: type = torch.Generator
    refuse: Callable[[], None] = staticmethod(lambda: None)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        _RefusedMeta.refuse()
        return _RefusedMeta.original(*args, **kwargs)

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _RefusedMeta.original)


class _RefusedGenerator(metaclass=_RefusedMeta):
    """Stands in for `torch.Generator` while a program is recorded."""


@contextlib.contextmanager
def refused_generators(refuse: Callable[[], None]) -> Iterator[None]:
    """While active, `torch.Generator(...)` in this thread calls `refuse`, which raises."""
    before, before_refuse, thread = torch.Generator, _RefusedMeta.refuse, threading.get_ident()
    _RefusedMeta.refuse = staticmethod(lambda: refuse() if threading.get_ident() == thread else None)
    torch.Generator = _RefusedGenerator  # type: ignore[misc, assignment]
    try:
        yield
    finally:
        torch.Generator = before  # type: ignore[misc]
        _RefusedMeta.refuse = staticmethod(before_refuse)


def default_generator() -> torch.Generator:
    """Torch's generator for CPU draws."""
    return torch.default_generator
