"""What other packages are told of the classes of fakes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor


class _HiddenMeta(type):
    """A class of which nothing is an instance, unless torch's own code asks.

    dovetail has the class itself, and never asks by this name: it stands in for `isinstance` and hands questions on.
    """

    def __instancecheck__(cls, instance: object) -> bool:
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and _package(frame) == "dovetail":
            frame = frame.f_back
        return frame is not None and _package(frame) == "torch" and isinstance(instance, FakeTensor)


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


class _HiddenFake(metaclass=_HiddenMeta):
    """Stands for the class of fakes where libraries look for it."""


@contextmanager
def hidden_fakes() -> Iterator[None]:
    """While active, other libraries that ask whether a tensor is fake hear that it is not.

    Some take another way on fakes (transformers makes a mask that it leaves out in eager mode, for one).
    """
    before = torch._subclasses.FakeTensor
    torch._subclasses.FakeTensor = _HiddenFake  # type: ignore[misc, assignment]
    try:
        yield
    finally:
        torch._subclasses.FakeTensor = before  # type: ignore[misc]


@contextmanager
def shown_fakes() -> Iterator[None]:
    """While active, fakes are not hidden: Dynamo asks for their class by its name."""
    before = torch._subclasses.FakeTensor
    torch._subclasses.FakeTensor = FakeTensor  # type: ignore[misc]
    try:
        yield
    finally:
        torch._subclasses.FakeTensor = before  # type: ignore[misc]


@contextmanager
def naming_classes(class_of: Callable[[torch.Tensor], type]) -> Iterator[None]:
    """While active, `tensor.__class__` of a fake gives other packages what `class_of` does."""

    def named(fake: Any) -> type:
        asking = sys._getframe(1).f_globals.get("__name__", "")  # some ten times for each operator
        is_ours = type(asking) is str and asking.startswith(("torch.", "dovetail."))
        return type(fake) if is_ours or asking in ("torch", "dovetail") else class_of(fake)

    class Named(torch.Tensor):
        """A base of fakes, as nobody can set `__class__` on a class."""

        __class__ = property(named)

    before = FakeTensor.__bases__
    FakeTensor.__bases__ = (Named,)
    try:
        yield
    finally:
        FakeTensor.__bases__ = before
