"""Python's arithmetic with traced numbers: what asks for a plain number otherwise is noted like any operation."""

from __future__ import annotations

import builtins
import contextlib
import functools
import math
import operator
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from types import FunctionType
from typing import Any

import numpy as np
import torch
from torch.nn.modules import batchnorm, rnn
from torch.nn.utils import clip_grad

from dovetail.torch_compat.data_sizes import without_hint
from dovetail.torch_compat.traced_methods import METHODS, ROUNDED
from dovetail.torch_compat.traced_numbers import (
    NumberNode,
    NumberTrace,
    as_size,
    fixed_number,
    is_traced,
    result_now,
    traced_number,
)
from dovetail.torch_compat.traced_sequences import SEQUENCE_FUNCTIONS, followed_call

_SYMBOLIC = (torch.SymFloat, torch.SymInt, torch.SymBool)
_CHOICES, _POWER, _ARRAY = (max, min), pow, np.array  # while other functions may lie in their places
_OF_MANY = ("frexp", "modf", *dict(SEQUENCE_FUNCTIONS)[math])
_MATHS = tuple(name for name in vars(math) if callable(getattr(math, name)) and name[0] != "_" and name not in _OF_MANY)


@contextlib.contextmanager
def traced_maths(number_for: Callable[[Any], Any] | None = None) -> Iterator[None]:
    """While active, what Python does with traced numbers is noted also where it would ask for plain ones.

    Functions of `math` and of sequences, `max` and `min` are noted, and so are all operators as Python has them:
    torch's symbolic ones make `math.floor(a / b)` of `a // b`, which is another number, refuse negative bases of
    powers, and do not compute with truth values. Code outside torch that asks whether a traced number is a float, say,
    is told so. What one is as text is up to its trace. Arrays of NumPy, and tables, ask for the plain number. Copies
    are the number. Bounds of gradients, batches of packed sequences and counts of batches, of which torch makes plain
    ones, stay traced.

    number_for: gives traced numbers for symbols of torch of which nothing is known. Torch puts sums and products
    of floats in order, and takes a number less itself for 0, which may be NaN.
    """
    changed: list[tuple[Any, str, Any]] = []
    meant = dict(_MEANT)

    def change(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        before = getattr(owner, name, None)
        changed.append((owner, name, before if name in vars(owner) else _INHERITED))
        setattr(owner, name, make(before))

    try:
        for symbolic in _SYMBOLIC:
            for name, function in _BINARY.items():
                change(symbolic, f"__{name}__", functools.partial(_binary, function, number_for))
                if name not in _COMPARISONS:
                    reflected = functools.partial(_binary, function, number_for, is_reflected=True)
                    change(symbolic, f"__r{name}__", reflected)
            for name, of_one in _UNARY.items():
                change(symbolic, f"__{name}__", functools.partial(_unary, of_one))
            change(symbolic, "__divmod__", lambda _: lambda self, other: (self // other, self % other))
            for name, make in {**METHODS, **(ROUNDED if symbolic is not torch.SymFloat else {})}.items():
                change(symbolic, name, make)
            change(symbolic, "__format__", _format)
            change(symbolic, "__hash__", _hash)
            change(symbolic, "__copy__", lambda _: lambda self: self)
            change(symbolic, "__deepcopy__", lambda _: lambda self, memo: self)
            change(symbolic, "__array_ufunc__", lambda _: _plain_function)
            change(symbolic, "__array__", lambda _: _plain_array)
        for owner, name in _IN_MODULES:
            is_of_one = owner is math and name in _MATHS
            follow = functools.partial(_traced_function, number_for) if is_of_one else _traced_function_of_sequences
            change(owner, name, functools.partial(_followed, follow))
        change(builtins, "pow", _power)
        for name in ("max", "min"):
            change(builtins, name, functools.partial(_traced_function, None))
        change(builtins, "isinstance", _instance_question)
        change(clip_grad, "float", lambda _: _float)
        change(batchnorm, "float", lambda _: _float)
        change(rnn, "int", lambda _: _int)
        yield
    finally:
        for owner, name, before in reversed(changed):
            if before is _INHERITED:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
        for key in list(_MEANT):
            if key in meant:
                _MEANT[key] = meant[key]
            else:
                del _MEANT[key]


def untraced(function: Any) -> Any:
    """What a function stands in for while numbers are traced; of any other value, the value."""
    return vars(function).get(_ORIGINAL, function) if type(function) is FunctionType else function


def _followed(follow: Callable[[Any], Any], before: Any) -> Any:
    """What is put in the place of a function of a module."""
    key = id(untraced(before))
    if key not in STAND_INS:  # a function of the user's
        return follow(before)
    _MEANT[key] = follow(_MEANT.get(key, untraced(before)))
    return STAND_INS[key]


def _standing_for(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return _MEANT.get(id(function), function)(*args, **kwargs)

    setattr(call, _ORIGINAL, function)
    return call


_INHERITED = object()
_ORIGINAL = "_stands_in_for"
_IN_MODULES = tuple((owner, name) for owner, names in ((math, _MATHS), *SEQUENCE_FUNCTIONS) for name in names)
_MEANT: dict[int, Callable[..., Any]] = {}
STAND_INS = {id(function): _standing_for(function) for function in (getattr(*place) for place in _IN_MODULES)}
"""What lies in the place of a function of a module while `traced_maths` is active, by identity of the function.

There is one for good, so that it is the same wherever it lies. It calls what is meant by then: at other times, the
function.
"""
_NUMBERS = (int, float, complex, Decimal, Fraction)
_TAKE_PLAIN = ("torch", "dovetail", "fractions")  # a fraction of traced numbers would look like one of plain ones
_COMPARISONS = frozenset(("eq", "ne", "lt", "le", "gt", "ge"))
_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    **{name: getattr(operator, name) for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")},
    **{name: getattr(operator, name) for name in ("lshift", "rshift", "xor", *sorted(_COMPARISONS))},
    "and": operator.and_,
    "or": operator.or_,
}
_ANSWERS = frozenset(_BINARY[name] for name in _COMPARISONS)
_UNARY: dict[str, Callable[[Any], Any]] = {
    **{"neg": operator.neg, "pos": operator.pos, "abs": operator.abs, "invert": operator.invert},
    **{"floor": math.floor, "ceil": math.ceil, "trunc": math.trunc},
}


def _format(before: Callable[..., str]) -> Callable[..., str]:
    def text(self: Any, spec: str) -> str:
        if not is_traced(self):
            return before(self, spec)
        made: str = self.node.trace.text(self.node.handle, self.node.now, Formatting(spec))
        return made

    return text


@dataclass(frozen=True, slots=True)
class Formatting:
    """Makes a text of a number, as `format` does."""

    spec: str

    def __call__(self, number: Any) -> str:
        """The text."""
        return format(number, self.spec)


def _power(before: Callable[..., Any]) -> Callable[..., Any]:
    """Python's `pow`, which takes a traced number as any of three as well."""

    @functools.wraps(before)
    def power(base: Any, exp: Any, mod: Any = None) -> Any:
        first = next(filter(is_traced, (base, exp, mod)), None)
        if mod is None or first is None:
            return before(base, exp, mod)
        given = [x.node if is_traced(x) else first.node.beside(x) for x in (base, exp, mod)]
        return given[0].apply(_POWER, *given[1:]).wrapped()

    setattr(power, _ORIGINAL, before)
    return power


def _float(item: Any) -> Any:
    number = item.item() if isinstance(item, torch.Tensor) else item
    return torch.sym_float(number) if is_traced(number) else float(number)


def _int(item: Any) -> Any:
    number = item.item() if isinstance(item, torch.Tensor) else item
    return number if type(number) is torch.SymInt else int(number)


def _hash(before: Callable[[Any], int]) -> Callable[[Any], int]:
    return lambda self: hash(fixed_number(self)) if is_traced(self) else before(self)


def _plain_function(self: Any, function: Any, method: str, *args: Any, **kwargs: Any) -> Any:
    """What NumPy does with traced numbers, unless another argument knows better: it is noted, if that can be done."""
    if any(map(_takes_ufuncs, (*args, *kwargs.get("out", ())))):
        return NotImplemented
    found = followed_call(function, args, kwargs) if method == "__call__" else NotImplemented
    if found is not NotImplemented:
        return found
    given = [fixed_number(argument) if is_traced(argument) else argument for argument in args]
    named = {name: fixed_number(argument) if is_traced(argument) else argument for name, argument in kwargs.items()}
    return getattr(function, method)(*given, **named)


def _takes_ufuncs(argument: Any) -> bool:
    """Whether an argument has its own way with functions of NumPy."""
    own = getattr(type(argument), "__array_ufunc__", None)
    return own not in (None, np.ndarray.__array_ufunc__, _plain_function)


def _plain_array(self: Any, dtype: Any = None, copy: bool | None = None) -> Any:
    return _ARRAY(fixed_number(self), dtype)


def _instance_question(before: Callable[..., bool]) -> Callable[..., bool]:
    def is_instance(item: object, kinds: Any) -> bool:
        answer = before(item, kinds)
        if answer or type(item) not in _SYMBOLIC or not before(item.node, NumberNode):
            return answer
        asking = str(sys._getframe(1).f_globals.get("__name__", "")).partition(".")[0]
        node: Any = item.node
        return asking not in _TAKE_PLAIN and before(node.trace.typed(node.handle, node.now), kinds)

    setattr(is_instance, _ORIGINAL, before)
    return is_instance


def _binary(
    function: Callable[[Any, Any], Any],
    number_for: Callable[[Any], Any] | None,
    before: Callable[[Any, Any], Any] | None,
    *,
    is_reflected: bool = False,
) -> Callable[[Any, Any], Any]:
    """A method for an operator of two numbers. before: the method that it stands in for, if there was one."""

    def method(self: Any, other: Any) -> Any:
        if number_for is not None and (function is operator.truediv or not _are_whole(self, other)):
            self, other = _without_symbols(number_for, self), _without_symbols(number_for, other)
        elif number_for is not None and (_is_unknown(self) or _is_unknown(other)):
            self, other = _as_symbol(self), _as_symbol(other)  # of which torch may be told more
            if type(self) is int:
                return function(other, self) if is_reflected else function(self, other)
        if type(other) is torch.SymInt and is_traced(self) and not is_traced(other):
            other = self.node.trace.number_for(other)
        elif is_traced(other) and type(self) is torch.SymInt and not is_traced(self):
            self = other.node.number_of(self)
        if is_traced(self) and (is_traced(other) or type(other) in (bool, int, float)):
            node = other.node if is_traced(other) else self.node.beside(other)
            first, second = (node, self.node) if is_reflected else (self.node, node)
            if type(result_now(function, (first, second))) in (bool, int, float):
                if function is operator.pow:
                    _ask_type_of_power(first, second)
                made = first.apply(function, second)
                trace = made.trace  # code may ask whether an answer of Python's is True
                is_answer = function in _ANSWERS and trace.knows(made.handle) and not trace.is_of_numpy(made.handle)
                return made.guard_bool() if is_answer else made.wrapped()
        if (
            is_traced(self)
            and isinstance(other, _NUMBERS)
            and not isinstance(other, np.generic)
            and not is_traced(other)
        ):
            now = fixed_number(self)  # of an enumeration, say: who made its class says what comes of it
            return function(other, now) if is_reflected else function(now, other)
        return NotImplemented if before is None else before(self, other)

    return method


def _are_whole(*numbers: Any) -> bool:
    return all(type(number) in (torch.SymInt, int, bool) for number in numbers)


def _without_symbols(number_for: Callable[[Any], Any], number: Any) -> Any:
    """A traced number in the place of one of torch's symbols of which nothing is known."""
    return number_for(number) if _is_unknown(number) else number


def _is_unknown(number: Any) -> bool:
    return type(number) in (torch.SymInt, torch.SymFloat) and without_hint(number)


def _as_symbol(number: Any) -> Any:
    """A traced number as torch's symbol, or plain; anything else as it is."""
    return as_size(number) if is_traced(number) else number


def _unary(function: Callable[[Any], Any], before: Callable[[Any], Any] | None) -> Callable[[Any], Any]:
    def method(self: Any) -> Any:
        if is_traced(self):
            return self.node.apply(function).wrapped()
        if before is None:
            raise TypeError(f"{function.__name__} of a {type(self).__name__}")
        return before(self)

    return method


def _ask_type_of_power(base: NumberNode, exponent: NumberNode) -> None:
    """Whether a power is an integer, a float or a complex number hangs on the numbers."""
    if type(exponent.now) is not float:
        if type(base.now) is not float:
            _ask_sign(exponent)  # a negative one makes a float of integers
    elif base.now < 0:
        exponent.guard_number()  # one that is not a whole number makes complex numbers


def _ask_sign(node: NumberNode) -> None:
    """The result of what follows is of another type for numbers of the other sign."""
    if not node.is_constant_number:
        node.apply(operator.lt, node.beside(0)).guard_bool()


def _traced_function(number_for: Callable[[Any], Any] | None, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if number_for is not None:
            args = tuple([_without_symbols(number_for, argument) for argument in args])
        first = next((argument for argument in args if is_traced(argument)), None)
        if first is None or kwargs or any(not is_traced(a) and type(a) not in (bool, int, float) for a in args):
            return function(*args, **kwargs)
        given = [argument.node if is_traced(argument) else first.node.beside(argument) for argument in args]
        if function in _CHOICES and len({type(node.trace.typed(node.handle, node.now)) for node in given}) > 1:
            return function(*args)  # the result is of the type of the one that is chosen: it asks which that is
        result = result_now(function, given)
        if type(result) not in (bool, int, float):
            return function(*args)
        trace: NumberTrace = first.node.trace
        handle = trace.apply(function, tuple(node.handle for node in given), result)
        return traced_number(trace, handle, result)

    setattr(call, _ORIGINAL, function)
    return call


def _traced_function_of_sequences(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        found = followed_call(function, args, kwargs)
        return function(*args, **kwargs) if found is NotImplemented else found

    setattr(call, _ORIGINAL, function)
    return call


STANDING_IN = frozenset(
    stub.__code__ for stub in (_plain_function, _traced_function(None, max), _traced_function_of_sequences(max))
)
"""The code of what stands in for functions of numbers: it calls them as the user's code does."""
