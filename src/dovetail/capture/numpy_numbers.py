"""Which traced numbers are of NumPy's types where code computes with them: torch makes tensors of 64 bits of those."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NoReturn

import numpy as np
import torch

from dovetail.ir.program import Value
from dovetail.torch_compat.traced_numbers import handle_of, is_traced, number_now, numpy_result

WHOLE = (np.int64, np.bool_)
_PURE = "_calls_numpy"
_OF_PYTHON = frozenset((float, int, bool, *(x for x in vars(math).values() if callable(x))))  # which give no other


def of_python(number: Any) -> Any:
    """A number as one of Python's."""
    return number.item() if isinstance(number, np.generic) else number


@lru_cache(1024)
def of_numpy(function: Callable[..., Any], kinds: tuple[type[Any] | None, ...]) -> Callable[..., Any]:
    """Calls a function with numbers of NumPy. kinds: of which classes they are there, None for numbers as they come."""

    def call(*numbers: Any) -> Any:
        given = [x if kind is None else kind(x) for x, kind in zip(numbers, kinds, strict=True)]
        found = function(*given)
        return found.item() if type(found) in WHOLE else found

    call.__name__ = getattr(function, "__name__", "number")
    setattr(call, _PURE, True)
    return call


def is_of_numpy(function: object) -> bool:
    """Whether this is such a function."""
    return hasattr(function, _PURE)


class NumpyNumbers:
    """The numbers that are of NumPy, and those that may be, as they are computed with such."""

    def __init__(self) -> None:
        self._known: set[Value] = set()
        self._computed: set[Value] = set()
        self._kinds: dict[Value, type[Any]] = {}

    def add(self, value: Value, kind: type[Any] = np.float64) -> None:
        """A number is one of NumPy's, which is one of Python's in programs if it is whole, or a truth value."""
        if kind is np.float64:
            self._known.add(value)
        elif kind in WHOLE:
            self._kinds[value] = kind

    def kind_of(self, value: Any) -> type[Any] | None:
        """The class of NumPy's that a whole number, or a truth value, is of."""
        return self._kinds.get(value)

    def meant(self, function: Callable[..., Any], operands: Sequence[Any], now: Mapping[str, Any]) -> tuple[Any, Any]:
        """What a program calls in the place of a function of numbers, and what that gives now where it is NumPy's way.

        now: the numbers by the names of values.
        """
        if not (self._kinds or self._known):
            return function, None
        found = numpy_result(function, [self.typed(x, now[x.name]) if isinstance(x, Value) else x for x in operands])
        kinds = tuple(map(self.kind_of, operands))
        if found is not None and (any(kinds) or type(found) in WHOLE):
            return of_numpy(function, kinds), found
        return function, found

    def given(self, value: Value, now: object) -> None:
        """An input is this number now."""
        if type(now) is np.float64:
            self.add(value)

    def typed(self, value: Value, number: Any) -> Any:
        """The number that a value is now, as one of NumPy's if it is."""
        if value in self._kinds:
            return self._kinds[value](number)
        return np.float64(number) if value in self._known and type(number) is float else number

    def computed(self, function: Callable[..., Any], operands: Sequence[Value], made: Value, result: object) -> None:
        """A number was computed."""
        if type(result) in (np.float64, *WHOLE):
            self.add(made, type(result))
        elif self._known and function not in _OF_PYTHON and any(map(self.may_be, operands)):
            self._computed.add(made)

    def result(self, function: Callable[..., Any], operands: Sequence[Any], now: Mapping[str, Any]) -> float | None:
        """What a function that fails with numbers of Python's gives of NumPy's: infinity, for one; None without these.

        now: the numbers by the names of values.
        """
        if not any(map(self.may_be, operands)):
            return None
        given = [now[x.name] if isinstance(x, Value) else x for x in operands]
        with np.errstate(all="ignore"):
            found = function(*[np.float64(x) if type(x) is float else x for x in given])
        return float(found) if isinstance(found, np.float64) else None

    def may_be(self, value: Any) -> bool:
        """Whether a value may be a number of NumPy's."""
        return value in self._known or value in self._computed or value in self._kinds

    def dtype_of(self, numbers: Iterable[Any], refuse: Callable[..., NoReturn]) -> torch.dtype | None:
        """The dtype that torch gives to a tensor of numbers where some are of NumPy: of 64 bits; None without these.

        refuse: gets what is refused, why, and a way out, where one is computed with such a number: it may be of NumPy.
        """
        found = False
        for number in numbers if self._known else ():
            if is_traced(number) and type(number_now(number)) is float and isinstance(handle_of(number), Value):
                found |= handle_of(number) in self._known
                if handle_of(number) in self._computed:
                    refuse(
                        what="makes a tensor without a dtype of what it computes with a number of NumPy",
                        why="torch makes it of 64 bits where the result is a number of NumPy, and else of the default",
                        hint="say which: torch.tensor(number, dtype=torch.float32)",
                    )
        return torch.float64 if found else None
