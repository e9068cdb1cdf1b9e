"""Standing in for torch's default generators while a program is recorded."""

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
def replaced_default_generators(make: Callable[[int | None], Any]) -> Iterator[None]:
    """While active, torch's Python functions on the states of generators (`get_rng_state`, `fork_rng`, `manual_seed`,
    those of `torch.cuda`, ...) talk to substitutes. Those called in other threads do not.

    make: gives the substitute for the CPU's generator (None), and for that of each GPU (its number), with the methods
    of `torch.Generator` that these functions use.
    """
    before, of_gpus = torch.random.default_generator, torch.cuda.default_generators
    torch.random.default_generator = _OfThisThread(make(None), before)  # type: ignore[assignment]
    stand_ins: Any = tuple([_OfThisThread(make(number), kept) for number, kept in enumerate(of_gpus)])
    torch.cuda.default_generators = stand_ins
    try:
        yield
    finally:
        torch.random.default_generator, torch.cuda.default_generators = before, of_gpus


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


def default_generator(gpu: int | None = None) -> torch.Generator:
    """Torch's generator for draws on the CPU, or on a GPU."""
    return torch.default_generator if gpu is None else torch.cuda.default_generators[gpu]
