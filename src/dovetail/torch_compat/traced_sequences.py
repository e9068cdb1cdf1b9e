"""Functions of sequences of traced numbers, and NumPy's of single ones: `np.mean(losses)`, `np.isnan(loss)`.

They are noted as one function of the numbers, which is called with the real ones in each run.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from dovetail.torch_compat.traced_numbers import is_traced, number_now, traced_number

_SEQUENCES = (list, tuple, deque)
_PLAIN = (bool, int, float, np.float64)
_OPTIONS = (bool, int, float, str, type(None))
_NUMPY = (
    "mean median std var sum prod average percentile quantile nanmean nanmedian max min amax amin clip round isclose"
)
_STATISTICS = "mean fmean median median_low median_high stdev pstdev variance pvariance geometric_mean harmonic_mean"
SEQUENCE_FUNCTIONS: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (math, tuple(name for name in ("fsum", "prod", "sumprod", "dist", "hypot") if hasattr(math, name))),
    (np, tuple(_NUMPY.split())),
    (statistics, tuple(_STATISTICS.split())),
)
"""Modules, and the names of their functions that take sequences of numbers."""


def followed_call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The traced number that a function of traced numbers gives; NotImplemented where it needs plain ones.

    args: plain and traced numbers, and sequences of them. kwargs: plain values.
    """
    numbers: list[Any] = []
    shapes = tuple(_shape(argument, numbers) for argument in args)
    first = next(filter(is_traced, numbers), None)
    if first is None or None in shapes or not first.node.trace.follows_numpy:
        return NotImplemented
    if not all(type(x) in _OPTIONS for x in kwargs.values()) or not all(
        is_traced(x) or type(x) in _PLAIN for x in numbers
    ):
        return NotImplemented
    meant = _of_numbers(function, shapes, tuple(kwargs.items()), repr(kwargs))
    try:
        result = meant(*[number_now(x) if is_traced(x) else x for x in numbers])
    except (ArithmeticError, ValueError):
        return NotImplemented
    if type(result) not in (bool, int, float, np.bool_, np.float64):
        return NotImplemented
    handles = tuple(x.node.handle if is_traced(x) else x for x in numbers)
    handle = first.node.trace.apply(meant, handles, result)
    return traced_number(first.node.trace, handle, result.item() if isinstance(result, np.generic) else result)


def _shape(argument: Any, numbers: list[Any]) -> Any:
    """What an argument is made of numbers by, which are added; None for what is neither a number nor a sequence."""
    if is_traced(argument) or type(argument) in _PLAIN:
        numbers.append(argument)
        return 1
    if type(argument) not in _SEQUENCES:
        return None
    numbers += argument
    return (type(argument), len(argument))


@lru_cache(1024)
def _of_numbers(
    function: Callable[..., Any], shapes: tuple[Any, ...], options: tuple[tuple[str, Any], ...], _: str
) -> Callable[..., Any]:
    """A function of numbers that calls another one, with sequences of them: the same one for the same.

    shapes: 1 for a number, or a sequence's class and length. options: arguments by name, which may be equal and not
    the same (0.0 and -0.0): so their text comes after them.
    """

    def call(*numbers: Any) -> Any:
        left, args = list(numbers), list[Any]()
        for shape in shapes:
            if shape == 1:
                args.append(left.pop(0))
            else:
                kind, count = shape
                args.append(kind(left[:count]))
                del left[:count]
        return function(*args, **dict(options))

    call.__name__ = function.__name__
    return call
