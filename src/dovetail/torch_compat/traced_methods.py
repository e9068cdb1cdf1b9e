"""Methods and attributes of Python's numbers that torch's symbolic ones lack, or have with other results.

~n, n.real, n.bit_count(), round(n, -1), divmod(7, n), x.is_integer()
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from dovetail.torch_compat.traced_numbers import fixed_number, is_traced, plain_number

Make = Callable[[Any], Any]


def _imaginary(number: Any) -> Any:
    return number.imag


def _bit_count(number: int) -> int:
    return number.bit_count()


def _bit_length(number: int) -> int:
    return number.bit_length()


def _is_integer(number: float) -> bool:
    return number.is_integer()


def _one(number: int) -> int:
    return number.denominator


_ATTRIBUTES: dict[str, Callable[[Any], Any]] = {
    **{"real": operator.pos, "imag": _imaginary},
    **{"numerator": operator.pos, "denominator": _one},
}
_CALLED: dict[str, Callable[[Any], Any]] = {
    **{"bit_count": _bit_count, "bit_length": _bit_length},
    "conjugate": operator.pos,
}
_PLAIN = ("to_bytes", "as_integer_ratio", "hex")


def _asked(number: Any, name: str, before: Any) -> Any:
    """What torch has under a name, for numbers that are not traced. Raises: AttributeError as numbers of Python do."""
    if before is not None and not is_traced(number):
        return before.__get__(number)
    raise AttributeError(f"{type(number).__name__!r} object has no attribute {name!r}")


def _has(number: Any, name: str) -> bool:
    return is_traced(number) and hasattr(number.node.now, name)


def _attribute(name: str, function: Callable[[Any], Any], before: Any) -> Any:
    def read(self: Any) -> Any:
        return self.node.apply(function).wrapped() if _has(self, name) else _asked(self, name, before)

    return property(read)


def _method(name: str, function: Callable[[Any], Any], before: Any) -> Any:
    def read(self: Any) -> Any:
        if not _has(self, name):
            return _asked(self, name, before)
        return lambda: self.node.apply(function).wrapped()

    return property(read)


def _plain_method(name: str, before: Any) -> Any:
    def read(self: Any) -> Any:
        return getattr(fixed_number(self), name) if _has(self, name) else _asked(self, name, before)

    return property(read)


def _question(before: Any) -> Any:
    def read(self: Any) -> Any:
        if not _has(self, "is_integer"):
            return _asked(self, "is_integer", before)
        made = self.node.apply(_is_integer)
        return made.guard_bool if made.trace.knows(made.handle) else made.wrapped

    return property(read)


def _rounding(before: Any) -> Any:
    def rounded(self: Any, ndigits: Any = None) -> Any:
        if not is_traced(self):
            return before(self, ndigits)
        if ndigits is None:
            return self.node.apply(round).wrapped()
        other = ndigits.node if is_traced(ndigits) else self.node.beside(operator.index(ndigits))
        return self.node.apply(round, other).wrapped()

    return rounded


def _item_of_numpy(self: Any) -> Callable[[], Any]:
    if not is_traced(self) or not self.node.trace.is_of_numpy(self.node.handle):
        raise AttributeError("item")
    return lambda: plain_number(self)


def _dtype_of_numpy(self: Any) -> Any:
    now = self.node.trace.typed(self.node.handle, self.node.now) if is_traced(self) else None
    if not isinstance(now, np.generic):
        raise AttributeError("dtype")
    return now.dtype


def _text(name: str, before: Callable[[Any], str]) -> Callable[[Any], str]:
    return lambda self: getattr(self.node, name)() if is_traced(self) else before(self)


METHODS: dict[str, Make] = {
    **{name: functools.partial(_attribute, name, function) for name, function in _ATTRIBUTES.items()},
    **{name: functools.partial(_method, name, function) for name, function in _CALLED.items()},
    **{name: functools.partial(_plain_method, name) for name in _PLAIN},
    "is_integer": _question,
    **dict.fromkeys(("item", "tolist"), lambda _: property(_item_of_numpy)),
    "dtype": lambda _: property(_dtype_of_numpy),
    **{f"__{name}__": functools.partial(_text, name) for name in ("repr", "str")},
    "__rdivmod__": lambda _: lambda self, other: (other // self, other % self),
}
"""What is put under a name of each class of symbolic numbers, given what was there."""
ROUNDED = {"__round__": _rounding}
"""The same, for whole numbers and truth values."""
