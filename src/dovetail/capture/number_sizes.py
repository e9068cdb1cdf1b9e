"""Python numbers that are inputs of a step's program, as sizes and as places of operators.

    buffer[at : at + 4] = x        add = operator.add(at, 2); guard(s0 >= 2, True, 0)
                             ->    part = slice(buffer, 0, s0 - 2, s0 + 2); copy_(part, x)

A program for each number is the better one where there are few. Where calls have shown more, the number is a symbol,
as sizes are that data decide (`data_sizes`); sums and products of it and of plain numbers are such of the symbol, so
that torch finds the sizes of what lies between two places. Torch takes it that a symbol is at least 2: the symbol is
for the number plus 2, so that a place may be 0 or 1. Where it is the size of a tensor, 0 and 1 have programs of their
own, as layouts and kernels differ there.

Sizes of arguments, where they are free, are such numbers as well, each by its own symbol. What whole numbers come of
them, torch computes beside Python, and what the code asks about these is a fact of the call, told before it runs.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from dovetail.capture.data_sizes import DataSizes
from dovetail.capture.number_symbols import OF_TORCH
from dovetail.ir.convert import scalar_of
from dovetail.ir.program import Value
from dovetail.ir.sizes import SizeExpr
from dovetail.torch_compat.symbols import hint_of

_LEAST = 2  # what torch takes a symbol to be
_LINEAR = frozenset((operator.add, operator.sub, operator.mul))
_AS_TORCH = frozenset((*OF_TORCH.values(), operator.sub, operator.neg))


class Computer(Protocol):
    """The recorder, as this module sees it."""

    numbers_now: dict[str, Any]

    def apply(self, function: Callable[..., Any], operands: tuple[Any, ...], result: Any) -> Any:
        """Record a function of numbers, which gives this one now."""

    def ask_of_sizes(self, fact: SizeExpr) -> None:
        """The program is to check a fact."""


class NumberSizes:
    """See the module docstring. is_on: whether such numbers are symbols."""

    def __init__(self, sizes: DataSizes, recorder: Computer) -> None:
        """sizes: gives symbols for numbers."""
        self.is_on = False
        self._sizes = sizes
        self._recorder: Computer = weakref.proxy(recorder)  # which holds this
        self._now = recorder.numbers_now
        self._made: dict[Value, tuple[Callable[..., Any], Sequence[Any]]] = {}
        self._symbols: dict[Value, Any] = {}
        self._of_arguments: set[Value] = set()
        self._noted: set[SizeExpr] = set()

    def given(self, made: Value, size: torch.SymInt) -> None:
        """A number is a size of the call's arguments."""
        self._symbols[made] = size
        self._of_arguments.add(made)

    def is_of_arguments(self, handle: Any) -> bool:
        """Whether a number, or an answer, hangs on nothing but sizes of the call's arguments."""
        return handle in self._of_arguments

    def is_known_to_torch(self, handle: Any) -> bool:
        """Whether it does, and torch computes it of those as Python does: what it hangs on is a fact of the call."""
        return handle in self._of_arguments and handle in self._symbols

    def ask_torch(self, handle: Value, now: Any) -> Any:
        """Such a number, or answer: which one it is, is a fact of the call from here on."""
        return type(now)(self.size_of(handle, now))

    def computed(self, made: Value, function: Callable[..., Any], operands: Sequence[Any]) -> None:
        """Note how a number was made of others."""
        values, are_whole = [x for x in operands if isinstance(x, Value)], all(map(self._is_whole, operands))
        if values and self._of_arguments.issuperset(values):
            self._of_arguments.add(made)
            if are_whole and function in _AS_TORCH and all(map(self.is_known_to_torch, values)):
                self._symbols[made] = function(*(self._symbols[x] if isinstance(x, Value) else x for x in operands))
        elif self.is_on and are_whole and function in _LINEAR:
            self._made[made] = function, operands

    def size_of(self, handle: Value, now: int) -> Any:
        """The symbol for a number, or what is computed of such."""
        if handle not in self._symbols:
            self._symbols[handle] = self._new(handle, now)
        return self._symbols[handle]

    def _new(self, handle: Value, now: int) -> Any:
        if handle in self._made:
            function, operands = self._made[handle]
            return function(*(self.size_of(x, self._now[x.name]) if isinstance(x, Value) else x for x in operands))
        if now < 0:
            return -self.size_of(self._recorder.apply(operator.neg, (handle,), -now), -now)
        if not self.is_on:
            return self._sizes.size_of(handle, now)
        moved = self._recorder.apply(operator.add, (handle, _LEAST), now + _LEAST)
        return self._sizes.size_of(moved, now + _LEAST) - _LEAST

    def note_sizes(self, result: Any) -> None:
        """Ask whether sizes of results that numbers decide are at least 2, or which ones they are."""
        for item in (result if isinstance(result, list | tuple) else (result,)) if self.is_on else ():
            sizes: Sequence[Any] = item.shape if isinstance(item, torch.Tensor) else ()
            for size in sizes:
                if type(size) is not int:
                    self._note_size(size)

    def _note_size(self, size: torch.SymInt) -> None:
        expr = scalar_of(size)
        if not isinstance(expr, SizeExpr) or expr in self._noted or not self._sizes.is_about_data(expr):
            return
        self._noted.add(expr)
        now = hint_of(size)
        if now in (0, 1):
            assert bool(size == now), "it is noted that it is this number"
        else:
            self._recorder.ask_of_sizes(SizeExpr("ge", (expr, _LEAST)))

    def _is_whole(self, operand: Any) -> bool:
        return type(self._now[operand.name] if isinstance(operand, Value) else operand) is int
