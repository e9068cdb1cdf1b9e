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
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import torch
from torch.fx.experimental.sym_node import SymNode

from dovetail.deferred import deferred

if TYPE_CHECKING:
    import sympy
else:
    sympy = deferred("sympy")

Plain: TypeAlias = "int | float | bool"
_SYMBOLIC = frozenset({torch.SymFloat, torch.SymInt, torch.SymBool})
_CHOICES, _RESULTS = (max, min), (bool, int, float, np.float64, np.int64, np.bool_)
_SymNode: Any = SymNode  # its annotations are of what torch's own nodes hold


class NumberTrace(Protocol):
    """Who is told what happens to traced numbers. A handle is whatever the trace knows a number by.

    follows_numpy: whether functions of NumPy, and of sequences of numbers, may be among those that are called.
    """

    follows_numpy: bool

    def apply(self, function: Callable[..., Any], operands: tuple[Any, ...], result: Plain) -> Any:
        """A function of numbers was called with these handles (or plain numbers). Returns: a handle of the result.

        result: may be a number or a truth value of NumPy's, where these are followed.
        """

    def decide(self, handle: Any, answer: bool) -> bool:
        """Whether the number is true is asked, and this is so now. Returns: what is to be answered."""

    def fix(self, handle: Any, number: Plain) -> Plain:
        """The number itself is asked for, which is this one now. Returns: what is to be given."""

    def text(self, handle: Any, now: Plain, convert: Callable[[Any], str]) -> str:
        """The number is turned into text. Returns: what stands for the text; may raise."""

    def size_for(self, handle: Any, now: Plain) -> Any:
        """The number as a symbol of an environment of torch's, or plain; see `number_for`."""

    def number_for(self, size: Any) -> Any:
        """A symbol of an environment of torch's as a traced number."""

    def is_of_numpy(self, handle: Any) -> bool:
        """Whether the number may be one of NumPy's, of which torch makes tensors of 64 bits."""

    def typed(self, handle: Any, now: Plain) -> Any:
        """The number that it is now, as one of NumPy's if it is, as far as that is known."""

    def knows(self, handle: Any) -> bool:
        """Whether what a number is now is known."""

    def might_give(self, function: Callable[..., Any], operands: tuple[Any, ...]) -> Plain | None:
        """What a function might give of these handles, where one is not known; None where all are."""

    def expect_number(self, handle: Any, answer: bool) -> bool:
        """The number has to be true, and this is so now. Returns: what is to be answered."""


class NumberNode(_SymNode):  # type: ignore[misc]
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
        size = self.size
        return size.node.expr if isinstance(size, torch.SymInt) else sympy.sympify(size)

    @property
    def size(self) -> Any:
        """The number as torch computes with sizes: a symbol of its own, or plain."""
        return self.now if self.is_constant_number else self.trace.size_for(self.handle, self.now)

    @property
    def pytype(self) -> type:
        """That of the number."""
        return type(self.now)

    def require_hint(self, *_: Any, **__: Any) -> Plain:
        return self.now

    def clone(self) -> NumberNode:
        return self

    def wrap_int(self, number: int) -> NumberNode:
        return NumberNode(self.trace, number, int(number))

    def wrap_float(self, number: float) -> NumberNode:
        return NumberNode(self.trace, number, float(number))

    def wrap_bool(self, number: bool) -> NumberNode:
        return NumberNode(self.trace, number, bool(number))

    def str(self) -> builtins.str:
        return self.trace.text(self.handle, self.now, builtins.str)

    def repr(self) -> builtins.str:
        """For `repr`, which names the class of numbers of NumPy."""
        return self.trace.text(self.handle, self.now, builtins.repr)

    __str__ = __repr__ = _graph_repr = str

    def apply(self, function: Callable[..., Any], *others: NumberNode) -> NumberNode:
        nodes = (self, *others)
        result = result_now(function, nodes)
        handle = self.trace.apply(function, tuple([node.handle for node in nodes]), result)
        return NumberNode(self.trace, handle, result)

    @property
    def is_constant_number(self) -> bool:
        """Whether the number is the same in each run."""
        return type(self.handle) in (bool, int, float)

    def wrapped(self) -> Any:
        """The symbolic number of torch's that holds this."""
        kind = torch.SymBool if self.is_bool() else torch.SymInt if self.is_int() else torch.SymFloat
        return kind(self)

    def beside(self, number: Plain) -> NumberNode:
        """A plain number, to compute with."""
        return NumberNode(self.trace, number, number)

    def number_of(self, size: torch.SymInt) -> Any:
        """A symbol of torch's as a traced number."""
        found = self.trace.number_for(size)
        return found if is_traced(found) else self.beside(int(found)).wrapped()

    def sym_ite(self, then: NumberNode, otherwise: NumberNode) -> NumberNode:
        return then if self.guard_bool() else otherwise

    def sym_sum(self, numbers: list[NumberNode]) -> NumberNode:
        return functools.reduce(lambda a, b: a.apply(operator.add, b), numbers)

    def guard_bool(self, *_: Any) -> bool:
        return self.trace.decide(self.handle, bool(self.now))

    def expect_true(self, *_: Any) -> bool:
        return self.trace.expect_number(self.handle, bool(self.now))

    bool_ = guard_or_false = guard_or_true = guard_size_oblivious = statically_known_true = guard_bool

    def guard_number(self, *_: Any) -> Any:
        return self.trace.fix(self.handle, self.now)

    def guard_float(self, *_: Any) -> Any:
        number = self.guard_number()
        return float(number) if isinstance(number, float) else number  # Python insists on a number of its own class

    guard_int = int_ = guard_number


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


def _method(function: Callable[..., Any]) -> Callable[..., NumberNode]:
    def method(self: NumberNode, *others: Any) -> NumberNode:
        nodes = [other if isinstance(other, NumberNode) else _counterpart(self, other) for other in others]
        return self.apply(function, *nodes)

    return method


for _name, _function in _OPERATIONS.items():
    setattr(NumberNode, _name, _method(_function))


def result_now(function: Callable[..., Any], nodes: Sequence[NumberNode]) -> Any:
    """What a function gives of numbers as they are now; of some that are not known, what it might give."""
    found = numpy_result(function, [node.trace.typed(node.handle, node.now) for node in nodes])
    if found is not None:
        return found.item() if isinstance(found, np.generic) else found
    try:
        return function(*[node.now for node in nodes])
    except (ArithmeticError, ValueError):
        found = nodes[0].trace.might_give(function, tuple([node.handle for node in nodes]))
        if found is None:
            raise
        return found


def numpy_result(function: Callable[..., Any], given: Sequence[Any]) -> Any:
    """What a function gives where some numbers are of NumPy, and it does not choose one of them; None elsewhere."""
    if not any(isinstance(x, np.generic) for x in given) or (function in _CHOICES and len(set(map(type, given))) > 1):
        return None
    with np.errstate(all="ignore"):  # who computes with it is warned, not who records
        found = function(*given)
    return found if type(found) in _RESULTS else None


def traced_number(trace: NumberTrace, handle: object, now: Plain) -> Any:
    """A symbolic number that is `now` while it is traced."""
    return NumberNode(trace, handle, now).wrapped()


def plain_number(number: Any) -> Any:
    """What `float` gives for a traced float, and `int` for a whole one: Python's, where it was one of NumPy's."""
    node: Any = number.node
    if isinstance(node, NumberNode) and node.trace.is_of_numpy(node.handle):
        return node.apply(type(node.now)).wrapped()
    return number


def is_traced(number: object) -> bool:
    """Whether this is a number that `traced_number` made, or what was computed with one."""
    kind = type(number)  # asked of each argument: tensors need not say which classes they belong to
    return kind in _SYMBOLIC and type(number.node) is NumberNode


def handle_of(number: Any) -> Any:
    """What its trace knows a traced number by."""
    return number.node.handle


def number_now(number: Any) -> Plain:
    """The number that a traced one is now. Nobody is told."""
    now: Plain = number.node.now
    return now


def as_plain(item: Any) -> Any:
    """The number that a traced one is now, in tuples as well, and nobody is told; everything else as it is."""
    if type(item) is tuple:
        return tuple(map(as_plain, item))
    return item.node.trace.typed(item.node.handle, item.node.now) if is_traced(item) else item


@contextlib.contextmanager
def keys_found() -> Iterator[None]:
    """While active, tables that look for their own keys find those that are traced numbers, and nobody is told."""
    usual: dict[Any, Any] = {symbolic: symbolic.__hash__ for symbolic in (torch.SymInt, torch.SymFloat)}
    for symbolic, function in usual.items():
        symbolic.__hash__ = functools.partialmethod(_hash_now, function)
    try:
        yield
    finally:
        for symbolic, function in usual.items():
            symbolic.__hash__ = function


def _hash_now(item: Any, usual: Callable[[Any], int]) -> int:
    return hash(item.node.now) if is_traced(item) else usual(item)


def is_unknown(number: Any) -> bool:
    """Whether this is a traced number of which is not known what it is now."""
    return is_traced(number) and not number.node.trace.knows(number.node.handle)


def fixed_number(number: Any) -> Plain:
    """The number that a traced one is now; its trace is told that it was asked for."""
    now: Plain = number.node.guard_number()
    return now


def as_size(number: Any) -> Any:
    """A traced number as torch computes with sizes: a symbol of its own, or plain."""
    return number.node.size


def _counterpart(like: NumberNode, other: Any) -> NumberNode:
    """What is to be computed with a number: a plain one, or a symbol of torch's. What torch says of sizes is a fact."""
    if not isinstance(other, SymNode):
        return like.beside(other)
    return like.number_of(torch.SymInt(other)).node if other.is_int() else like.beside(other.guard_bool("", 0))
