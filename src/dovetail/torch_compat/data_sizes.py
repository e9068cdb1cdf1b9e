"""Symbols for sizes that data decide, each with the number that it is now.

Torch makes a symbol without a number for the size of `x[mask]`: what asks about it gets a guess, or an error. With a
number each question has the answer that it has in eager mode, and the environment notes it as an assumption.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, free_unbacked_symbols

from dovetail.torch_compat.traced_numbers import is_traced

_SERIAL = itertools.count()


def with_shape_env(mode: FakeTensorMode) -> ShapeEnv:
    """The environment of a fake mode, which gets one if it has none. Tensors that it turns into fakes stay static."""
    if mode.shape_env is None:
        assert mode.static_shapes, "a mode without symbols makes static fakes"
        mode.shape_env = ShapeEnv()
    return mode.shape_env


def size_with_hint(env: ShapeEnv, now: int) -> torch.SymInt:
    """A symbol of its own that is `now`. If `now` is above 1, so is the symbol: nothing notes that as an assumption."""
    source = torch._dynamo.source.ConstantSource(f"size_of_data_{next(_SERIAL)}")
    symbol = env.create_symbol(
        now,
        source,
        dynamic_dim=DimDynamic.DYNAMIC,
        positive=True if now > 1 else None,
        do_not_specialize_zero_one=now < 2,
    )
    made = env.create_symintnode(symbol, hint=now, source=source)
    assert isinstance(made, torch.SymInt), "it is a symbol"
    return made


def without_hint(value: Any) -> bool:
    """Whether a symbolic number, or a size, stride or offset of a tensor, is one that no number stands for."""
    if isinstance(value, torch.Tensor):
        places = (*value.shape, *value.stride(), value.storage_offset())
        return any(without_hint(number) for number in places)
    is_symbol = isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool) and not is_traced(value)
    return is_symbol and bool(free_unbacked_symbols(value))


def assume(fact: Any) -> None:
    """Let the environment of a symbolic truth value take it for true. Raises: RuntimeError where it is false."""
    torch._check(fact)


@contextmanager
def asked_truths(answer: Callable[[torch.SymBool, FrameType], bool | None]) -> Iterator[None]:
    """While active, code that branches on a symbolic truth value hears what `answer` says, where it says something.

    answer: called with the value and the frame that asks.
    """
    before = torch.SymBool.__bool__

    def truth(self: torch.SymBool) -> bool:
        said = answer(self, sys._getframe(1))
        return before(self) if said is None else said

    setattr(torch.SymBool, "__bool__", truth)  # noqa: B010, a method
    try:
        yield
    finally:
        setattr(torch.SymBool, "__bool__", before)  # noqa: B010
