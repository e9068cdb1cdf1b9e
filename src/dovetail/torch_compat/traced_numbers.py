"""Python numbers whose arithmetic is noted: torch's symbolic numbers around a node class of dovetail's own.

`SymFloat`, `SymInt` and `SymBool` ask the object that they hold for the result of every operation, and for the answer
wherever a plain number or a truth value is needed. The object here knows the number as it is now, hands every
operation to a `NumberTrace`, and lets it know which answers were given. There is no environment of symbols and no
algebra: what Python computes is noted as Python computes it, so that running it again gives the same bits.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import math
import operator
import sys
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeAlias

import numpy as np
import sympy
import torch
from torch.fx.experimental.sym_node import SymNode

Plain: TypeAlias = "int | float | bool"
_SymNode: Any = SymNode  # its annotations are of what torch's own nodes hold


class NumberTrace(Protocol):
    """Who is told what happens to traced numbers. A handle is whatever the trace knows a number by."""

    def apply(self, function: Callable[..., Any], operands: tuple[Any, ...], result: Plain) -> Any:
        """A function of numbers was called with these handles (or plain numbers). Returns: a handle of the result."""

    def decide(self, handle: Any, answer: bool) -> None:
        """Whether the number is true was asked, and this is what was answered."""

    def fix(self, handle: Any, number: Plain) -> Plain:
        """The number itself is asked for, which is this one now. Returns: what is to be given."""

    def text(self, handle: Any, convert: Callable[[Any], str]) -> str:
        """The number is turned into text. Returns: what stands for the text; may raise."""

    def size_for(self, handle: Any, now: Plain) -> Any:
        """The number as a symbol of an environment of torch's, or plain; see `number_for`."""

    def number_for(self, size: Any) -> Any:
        """A symbol of an environment of torch's as a traced number."""


class _Node(_SymNode):  # type: ignore[misc]
    """What a symbolic number of torch's holds. handle: a plain number for a constant.

    Torch's own nodes compute with nodes of their class only: to them, this is a symbol of theirs (`expr`).
    """

    _optimized_summation = False
    constant = fx_node = None

    def __init__(self, trace: NumberTrace, handle: Any, now: Plain) -> None:
        self.trace, self.handle, self.now = trace, handle, now

    def is_int(self) -> bool:
        return type(self.now) is int

    def is_float(self) -> bool:
        return type(self.now) is float

    def is_bool(self) -> bool:
        return type(self.now) is bool

    def _no(self) -> bool:
        return False

    is_nested_int = is_constant = _no

    def is_symbolic(self) -> bool:
        return True

    def has_hint(self) -> bool:
        return True

    def _unknown(self) -> None:
        return None

    maybe_as_int = maybe_as_float = maybe_as_bool = constant_int = constant_bool = nested_int = _unknown

    @property
    def hint(self) -> Plain:
        return self.now

    @property
    def expr(self) -> Any:
        """Asked for where torch computes with one of its own symbols and this number: it is one from here on."""
        size = self.now if _is_plain(self.handle) else self.trace.size_for(self.handle, self.now)
        return size.node.expr if isinstance(size, torch.SymInt) else sympy.sympify(size)

    @property
    def pytype(self) -> type:
        """That of the number."""
        return type(self.now)

    def require_hint(self, *_: Any, **__: Any) -> Plain:
        return self.now

    def clone(self) -> _Node:
        return self

    def wrap_int(self, number: int) -> _Node:
        return _Node(self.trace, number, int(number))

    def wrap_float(self, number: float) -> _Node:
        return _Node(self.trace, number, float(number))

    def wrap_bool(self, number: bool) -> _Node:
        return _Node(self.trace, number, bool(number))

    def str(self) -> builtins.str:
        return self.trace.text(self.handle, builtins.str)

    __str__ = __repr__ = _graph_repr = str

    def apply(self, function: Callable[..., Any], *others: _Node) -> _Node:
        nodes = (self, *others)
        result = function(*[node.now for node in nodes])
        handle = self.trace.apply(function, tuple([node.handle for node in nodes]), result)
        return _Node(self.trace, handle, result)

    def sym_ite(self, then: _Node, otherwise: _Node) -> _Node:
        return then if self.guard_bool() else otherwise

    def sym_sum(self, numbers: list[_Node]) -> _Node:
        return functools.reduce(lambda a, b: a.apply(operator.add, b), numbers)

    def guard_bool(self, *_: Any) -> bool:
        answer = bool(self.now)
        self.trace.decide(self.handle, answer)
        return answer

    bool_ = expect_true = guard_or_false = guard_or_true = guard_size_oblivious = statically_known_true = guard_bool

    def guard_number(self, *_: Any) -> Any:
        return self.trace.fix(self.handle, self.now)

    guard_int = guard_float = int_ = guard_number


_OPERATIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(operator, name) for name in ("add", "sub", "mul", "mod", "neg", "pos", "abs", "floordiv")},
    **{name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge", "lshift", "rshift")},
    **dict.fromkeys(("truediv", "float_truediv", "int_truediv"), operator.truediv),
    **dict.fromkeys(("pow", "float_pow", "pow_by_natural"), operator.pow),
    "int_floordiv": operator.floordiv,
    **dict.fromkeys(("and_", "sym_and", "bitwise_and"), operator.and_),
    **dict.fromkeys(("or_", "sym_or", "bitwise_or"), operator.or_),
    "bitwise_xor": operator.xor,
    "sym_not": operator.not_,
    "sym_min": min,
    "sym_max": max,
    "sym_float": float,
    "sym_int": int,
    "floor": math.floor,
    "ceil": math.ceil,
    "trunc": math.trunc,
    "round": round,
    **{f"sym_{name}": getattr(math, name) for name in ("sqrt", "cos", "sin", "tan", "cosh", "sinh", "tanh")},
    **{f"sym_{name}": getattr(math, name) for name in ("acos", "asin", "atan", "log2")},
}


def _method(function: Callable[..., Any]) -> Callable[..., _Node]:
    def method(self: _Node, *others: Any) -> _Node:
        nodes = [other if isinstance(other, _Node) else _counterpart(self, other) for other in others]
        return self.apply(function, *nodes)

    return method


for _name, _function in _OPERATIONS.items():
    setattr(_Node, _name, _method(_function))


def traced_number(trace: NumberTrace, handle: object, now: Plain) -> Any:
    """A symbolic number that is `now` while it is traced."""
    return _wrapped(_Node(trace, handle, now))


def _wrapped(node: _Node) -> Any:
    kind = torch.SymBool if node.is_bool() else torch.SymInt if node.is_int() else torch.SymFloat
    return kind(node)


def is_traced(number: object) -> bool:
    """Whether this is a number that `traced_number` made, or what was computed with one."""
    return isinstance(number, torch.SymFloat | torch.SymInt | torch.SymBool) and isinstance(number.node, _Node)


def handle_of(number: Any) -> Any:
    """What its trace knows a traced number by."""
    return number.node.handle


def number_now(number: Any) -> Plain:
    """The number that a traced one is now. Nobody is told."""
    now: Plain = number.node.now
    return now


def fixed_number(number: Any) -> Plain:
    """The number that a traced one is now; its trace is told that it was asked for."""
    now: Plain = number.node.guard_number()
    return now


_SYMBOLIC = (torch.SymFloat, torch.SymInt, torch.SymBool)
_CHOICES = (max, min)
_OF_MANY = ("fsum", "prod", "sumprod", "dist", "hypot", "frexp", "modf")
_MATHS = tuple(name for name in vars(math) if callable(getattr(math, name)) and name[0] != "_" and name not in _OF_MANY)


@contextlib.contextmanager
def traced_maths() -> Iterator[None]:
    """While active, what Python does with traced numbers is noted also where it would ask for plain ones.

    Functions of `math`, `max` and `min` are noted, and so are all operators as Python has them: torch's symbolic ones
    make `math.floor(a / b)` of `a // b`, which is another number, refuse negative bases of powers, and do not compute
    with truth values. Code outside torch that asks whether a traced number is a float, say, is told so.
    What one is as text is up to its trace. NumPy, and tables, ask for the plain number. Copies are the number.
    """
    changed: list[tuple[Any, str, Any]] = []

    def change(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        before = getattr(owner, name, None)
        changed.append((owner, name, before if name in vars(owner) else _INHERITED))
        setattr(owner, name, make(before))

    try:
        for symbolic in _SYMBOLIC:
            for name, function in _BINARY.items():
                change(symbolic, f"__{name}__", functools.partial(_binary, function))
                if name not in _COMPARISONS:
                    change(symbolic, f"__r{name}__", functools.partial(_binary, function, is_reflected=True))
            for name, of_one in _UNARY.items():
                change(symbolic, f"__{name}__", functools.partial(_unary, of_one))
            change(symbolic, "__divmod__", lambda _: lambda self, other: (self // other, self % other))
            change(symbolic, "__format__", _format)
            change(symbolic, "__hash__", _hash)
            change(symbolic, "__copy__", lambda _: lambda self: self)
            change(symbolic, "__deepcopy__", lambda _: lambda self, memo: self)
            change(symbolic, "__array_ufunc__", lambda _: _plain_function)
            change(symbolic, "__array__", lambda _: _plain_array)
        for name in _MATHS:
            change(math, name, _traced_function)
        for name in ("max", "min"):
            change(builtins, name, _traced_function)
        change(builtins, "isinstance", _instance_question)
        yield
    finally:
        for owner, name, before in reversed(changed):
            if before is _INHERITED:
                delattr(owner, name)
            else:
                setattr(owner, name, before)


def _is_plain(handle: Any) -> bool:
    return type(handle) in (bool, int, float)


_INHERITED = object()
_COMPARISONS = frozenset(("eq", "ne", "lt", "le", "gt", "ge"))
_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    **{name: getattr(operator, name) for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")},
    **{name: getattr(operator, name) for name in ("lshift", "rshift", "xor", *sorted(_COMPARISONS))},
    "and": operator.and_,
    "or": operator.or_,
}
_ANSWERS = frozenset(_BINARY[name] for name in _COMPARISONS)
_UNARY: dict[str, Callable[[Any], Any]] = {
    **{"neg": operator.neg, "pos": operator.pos, "abs": operator.abs},
    **{"floor": math.floor, "ceil": math.ceil, "trunc": math.trunc},
}


def _format(before: Callable[..., str]) -> Callable[..., str]:
    def text(self: Any, spec: str) -> str:
        if not is_traced(self):
            return before(self, spec)
        made: str = self.node.trace.text(self.node.handle, lambda number: format(number, spec))
        return made

    return text


def _hash(before: Callable[[Any], int]) -> Callable[[Any], int]:
    return lambda self: hash(fixed_number(self)) if is_traced(self) else before(self)


def _plain_function(self: Any, function: Any, method: str, *args: Any, **kwargs: Any) -> Any:
    """What NumPy does with traced numbers: as with plain ones."""
    given = [fixed_number(argument) if is_traced(argument) else argument for argument in args]
    named = {name: fixed_number(argument) if is_traced(argument) else argument for name, argument in kwargs.items()}
    return getattr(function, method)(*given, **named)


def _plain_array(self: Any, dtype: Any = None, copy: bool | None = None) -> Any:
    return np.array(fixed_number(self), dtype)


def _instance_question(before: Callable[..., bool]) -> Callable[..., bool]:
    def is_instance(item: object, kinds: Any) -> bool:
        answer = before(item, kinds)
        if answer or type(item) not in _SYMBOLIC or not before(item.node, _Node):
            return answer
        asking = str(sys._getframe(1).f_globals.get("__name__", "")).partition(".")[0]
        return asking not in ("torch", "dovetail") and before(item.node.now, kinds)

    return is_instance


def _binary(
    function: Callable[[Any, Any], Any], before: Callable[[Any, Any], Any] | None, *, is_reflected: bool = False
) -> Callable[[Any, Any], Any]:
    """A method for an operator of two numbers. before: the method that it stands in for, if there was one."""

    def method(self: Any, other: Any) -> Any:
        if type(other) is torch.SymInt and is_traced(self) and not is_traced(other):
            other = self.node.trace.number_for(other)
        elif is_traced(other) and type(self) is torch.SymInt and not is_traced(self):
            self = _as_traced(other.node, self)
        if is_traced(self) and (is_traced(other) or type(other) in (bool, int, float)):
            node = other.node if is_traced(other) else _constant(self.node, other)
            first, second = (node, self.node) if is_reflected else (self.node, node)
            if type(function(first.now, second.now)) in (bool, int, float):
                if function is operator.pow:
                    _ask_type_of_power(first, second)
                made = first.apply(function, second)
                return made.guard_bool() if function in _ANSWERS else _wrapped(made)  # code may ask whether it is True
        return NotImplemented if before is None else before(self, other)

    return method


def _unary(function: Callable[[Any], Any], before: Callable[[Any], Any] | None) -> Callable[[Any], Any]:
    def method(self: Any) -> Any:
        if is_traced(self):
            return _wrapped(self.node.apply(function))
        if before is None:
            raise TypeError(f"{function.__name__} of a {type(self).__name__}")
        return before(self)

    return method


def _ask_type_of_power(base: _Node, exponent: _Node) -> None:
    """Whether a power is an integer, a float or a complex number hangs on the numbers."""
    if type(exponent.now) is not float:
        if type(base.now) is not float:
            _ask_sign(exponent)  # a negative one makes a float of integers
    elif base.now < 0:
        exponent.guard_number()  # one that is not a whole number makes complex numbers


def _ask_sign(node: _Node) -> None:
    """The result of what follows is of another type for numbers of the other sign."""
    if not _is_plain(node.handle):
        node.apply(operator.lt, _constant(node, 0)).guard_bool()


def _traced_function(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        first = next((argument for argument in args if is_traced(argument)), None)
        if first is None or kwargs or any(not is_traced(a) and type(a) not in (bool, int, float) for a in args):
            return function(*args, **kwargs)
        given = [argument.node if is_traced(argument) else _constant(first.node, argument) for argument in args]
        if function in _CHOICES and len({type(node.now) for node in given}) > 1:
            return function(*args)  # the result is of the type of the one that is chosen: it asks which that is
        result = function(*[node.now for node in given])
        if type(result) not in (bool, int, float):
            return function(*args)
        trace: NumberTrace = first.node.trace
        handle = trace.apply(function, tuple(node.handle for node in given), result)
        return traced_number(trace, handle, result)

    return call


def _constant(like: _Node, number: Any) -> _Node:
    return _Node(like.trace, number, number)


def _counterpart(like: _Node, other: Any) -> _Node:
    """What is to be computed with a number: a plain one, or a symbol of torch's."""
    return _as_traced(like, torch.SymInt(other)).node if isinstance(other, SymNode) else _constant(like, other)


def _as_traced(like: _Node, size: torch.SymInt) -> Any:
    found = like.trace.number_for(size)
    return found if is_traced(found) else _wrapped(_constant(like, int(found)))
