"""Immutable size expressions: integers known when a program runs, not when it is compiled.

A size is an `int` or a `SizeExpr` over named symbols. An expression prints as Python, compares and hashes by
structure, serialises to nested lists, and evaluates without sympy:

    SizeExpr("mul", (symbol("s0"), 4))   ->   s0 * 4   ->   evaluate({"s0": 3}) == 12
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from dovetail.torch_compat.symbols import NUMBER_FUNCTIONS

Number: TypeAlias = "int | float | bool"
Size: TypeAlias = "int | SizeExpr"
Scalar: TypeAlias = "int | float | bool | SizeExpr"


def _product(*factors: Number) -> Number:
    return functools.reduce(operator.mul, factors)


def _total(*terms: Number) -> Number:
    return functools.reduce(operator.add, terms)  # `sum` rounds floats otherwise than `+` does


OPAQUE = ("sqrt", "sin", "cos", "tan", "sinh", "cosh", "tanh", "asin", "acos", "atan", "asinh", "exp", "log", "log2")


def _opaque(name: str, number: Any) -> Number:
    """A function of `math`; of a symbolic number, a symbolic one."""
    function = getattr(math, name) if isinstance(number, int | float) else NUMBER_FUNCTIONS[name]
    result: Number = function(number)
    return result


def _chosen(choice: Callable[..., Any], *numbers: Any) -> Number:
    """The largest or smallest; of symbolic numbers, a symbolic one, without an answer which it is."""
    is_known = all(isinstance(number, int | float) for number in numbers)
    result: Number = choice(numbers) if is_known else functools.reduce(NUMBER_FUNCTIONS[choice.__name__], numbers)
    return result


@dataclass(frozen=True, slots=True)
class _Rule:
    compute: Callable[..., Number]
    infix: str = ""
    call: str = ""


_RULES: dict[str, _Rule] = {
    "add": _Rule(_total, infix=" + "),
    "mul": _Rule(_product, infix=" * "),
    "floordiv": _Rule(lambda a, b: a // b, infix=" // "),
    "truediv": _Rule(lambda a, b: a / b, infix=" / "),
    "mod": _Rule(lambda a, b: a % b, infix=" % "),
    "pow": _Rule(lambda a, b: a**b, infix=" ** "),
    "max": _Rule(partial(_chosen, max), call="max"),
    "min": _Rule(partial(_chosen, min), call="min"),
    "floor": _Rule(math.floor, call="math.floor"),
    "ceil": _Rule(math.ceil, call="math.ceil"),
    "trunc": _Rule(math.trunc, call="math.trunc"),
    "round": _Rule(round, call="round"),
    "float": _Rule(float, call="float"),
    "int": _Rule(int, call="int"),
    "abs": _Rule(abs, call="abs"),
    "bitand": _Rule(operator.and_, infix=" & "),
    "bitor": _Rule(operator.or_, infix=" | "),
    "bitxor": _Rule(operator.xor, infix=" ^ "),
    **{name: _Rule(partial(_opaque, name), call=f"math.{name}") for name in OPAQUE},
    "eq": _Rule(lambda a, b: a == b, infix=" == "),
    "ne": _Rule(lambda a, b: a != b, infix=" != "),
    "lt": _Rule(lambda a, b: a < b, infix=" < "),
    "le": _Rule(lambda a, b: a <= b, infix=" <= "),
    "gt": _Rule(lambda a, b: a > b, infix=" > "),
    "ge": _Rule(lambda a, b: a >= b, infix=" >= "),
    "and": _Rule(lambda *xs: all(xs), infix=" and "),
    "or": _Rule(lambda *xs: any(xs), infix=" or "),
    "not": _Rule(lambda a: not a, call="not "),
    "where": _Rule(lambda c, a, b: a if c else b),
}

OPERATIONS = frozenset(_RULES)
_ROUNDED = frozenset({"floor", "ceil", "trunc", "round", "int"})
_OF_WHOLE = frozenset({"add", "mul", "floordiv", "mod", "max", "min", "where", "abs", "bitand", "bitor", "bitxor"})
_ARGUMENTS = {"where": (3,), "round": (1, 2)}
_ANY_NUMBER = frozenset({"add", "mul", "max", "min", "and", "or"})  # of operands


@dataclass(frozen=True, slots=True)
class SizeExpr:
    """One operation over sizes; `op` is "symbol" (args: its name) or a key of `OPERATIONS`."""

    op: str
    args: tuple[int | float | bool | str | SizeExpr, ...]

    def __str__(self) -> str:
        if self.op == "symbol":
            return str(self.args[0])
        rule = _RULES[self.op]
        texts = [_operand_text(a, bool(rule.infix)) for a in self.args]
        if self.op == "pow" and texts[0].startswith("-"):
            texts[0] = f"({texts[0]})"
        if self.op == "where":
            return f"({texts[1]} if {texts[0]} else {texts[2]})"
        if rule.infix:
            return rule.infix.join(texts)
        return f"{rule.call}({', '.join(texts)})"

    __repr__ = __str__

    def evaluate(self, env: Mapping[str, Number]) -> Number:
        """The number this expression stands for under `env` (symbol name -> value).

        Raises: KeyError when a symbol has no value.
        """
        if self.op == "symbol":
            return env[str(self.args[0])]
        numbers = [a.evaluate(env) if isinstance(a, SizeExpr) else a for a in self.args]
        return _RULES[self.op].compute(*numbers)

    def uses_only(self, operations: Container[str]) -> bool:
        """Whether these are its operations; "symbol" counts as one."""
        parts = [arg for arg in self.args if isinstance(arg, SizeExpr)]
        return self.op in operations and all(part.uses_only(operations) for part in parts)

    def symbols(self) -> Iterator[str]:
        """Names of the symbols read, in order, with repeats."""
        if self.op == "symbol":
            yield str(self.args[0])
            return
        for arg in self.args:
            if isinstance(arg, SizeExpr):
                yield from arg.symbols()


def _operand_text(arg: Number | str | SizeExpr, in_infix: bool) -> str:
    if not isinstance(arg, SizeExpr):
        return arg if isinstance(arg, str) else number_text(arg)
    binds_loosely = arg.op == "not" or (arg.op != "symbol" and _RULES[arg.op].infix)
    return f"({arg})" if in_infix and binds_loosely else str(arg)


def number_text(number: Number) -> str:
    """A number as Python source, special floats included."""
    if isinstance(number, float) and not math.isfinite(number):
        return "math.nan" if math.isnan(number) else "math.inf" if number > 0 else "-math.inf"
    return repr(number)


def symbol(name: str) -> SizeExpr:
    """The size called `name`."""
    return SizeExpr("symbol", (name,))


def evaluate(size: Scalar, env: Mapping[str, Number]) -> Number:
    """`size` as a number: itself, or its expression under `env`."""
    if not isinstance(size, SizeExpr):
        return size
    try:
        return size.evaluate(env)
    except ZeroDivisionError:
        if not isinstance(env, OrOne):
            raise
        return size.evaluate(dict.fromkeys(size.symbols(), _WITH_PARTS))


def holds(fact: Scalar, env: Mapping[str, Number]) -> bool:
    """Whether a fact about sizes is true of these; a fact that divides by zero is not."""
    try:
        return bool(evaluate(fact, env))
    except ZeroDivisionError:
        return False


class OrOne(dict[str, Number]):
    """Numbers of size symbols; a symbol that nobody knows counts as 1, as it does in simulated peaks.

    A size that no such number can have (`h // (w // 2)`, with 1 for w) is evaluated with larger ones.
    """

    def __missing__(self, key: str) -> Number:
        return 1


_WITH_PARTS = 5040  # halves of it, thirds, and so on up to tenths, are whole numbers


def with_numbers(operand: object, env: Mapping[str, Number]) -> object:
    """An operand with numbers for the sizes in it, lists included."""
    if isinstance(operand, SizeExpr):
        return evaluate(operand, env)
    if isinstance(operand, list):
        return [with_numbers(item, env) for item in operand]
    return operand


def is_whole(size: Scalar | str) -> bool:
    """Whether a size is a whole number for all whole numbers of its symbols, by its operations alone."""
    if not isinstance(size, SizeExpr):
        return type(size) is int
    if size.op in _ROUNDED or size.op == "symbol":
        return len(size.args) == 1  # `round` to decimals gives a fraction
    if size.op == "pow":
        return is_whole(size.args[0]) and type(size.args[1]) is int and size.args[1] >= 0
    operands = size.args[1:] if size.op == "where" else size.args
    return size.op in _OF_WHOLE and all(map(is_whole, operands))


def to_json(size: Scalar) -> object:
    """Nested lists of plain values, for `from_json`."""
    if isinstance(size, SizeExpr):
        return [size.op, *[to_json(a) if isinstance(a, SizeExpr) else a for a in size.args]]
    return size


def from_json(data: object) -> Scalar:
    """The size that `to_json` wrote.

    Raises: ValueError when `data` is not such a structure, or an operation has another number of operands.
    """
    if isinstance(data, bool | int | float):
        return data
    if isinstance(data, list) and len(data) > 1 and isinstance(data[0], str):
        op, *args = data
        if op == "symbol" and len(args) == 1 and isinstance(args[0], str):
            return symbol(args[0])
        if op in OPERATIONS and _takes(op, len(args)):
            return SizeExpr(op, tuple(from_json(a) for a in args))
    raise ValueError(f"not a serialised size: {data!r}")


def _takes(op: str, count: int) -> bool:
    if op in _ANY_NUMBER:
        return count >= 1
    return count in _ARGUMENTS.get(op, (2,) if _RULES[op].infix else (1,))


def product(sizes: tuple[Size, ...]) -> Size:
    """The number of elements of a tensor of these sizes."""
    known = 1
    unknown: list[SizeExpr] = []
    for size in sizes:
        if isinstance(size, SizeExpr):
            unknown.append(size)
        else:
            known *= size
    if not unknown or known == 0:
        return known
    if known == 1 and len(unknown) == 1:
        return unknown[0]
    return SizeExpr("mul", (*unknown, known) if known != 1 else tuple(unknown))


def is_same_product(a: Size, b: Size) -> bool:
    """Whether two sizes have the same factors, in whatever order; may say no where they are equal in another way."""
    return a == b or _factors(a) == _factors(b)


def _factors(size: Size) -> tuple[int, list[str]]:
    """The number in a product, and what else is multiplied."""
    if isinstance(size, int):
        return size, []
    if size.op != "mul":
        return 1, [repr(size)]
    known, unknown = 1, list[str]()
    for part in size.args:
        if not isinstance(part, int | SizeExpr):
            return 1, [repr(size)]
        number, others = _factors(part)
        known, unknown = known * number, unknown + others
    return known, sorted(unknown)


def shifted(size: Size, by: Size) -> Size:
    """`size + by`."""
    if isinstance(size, int) and isinstance(by, int):
        return size + by
    return size if by == 0 else by if size == 0 else SizeExpr("add", (size, by))


def difference(a: Size, b: Size) -> Size:
    """`a - b`; 0 when they are the same expression."""
    if a == b:
        return 0
    if isinstance(a, int) and isinstance(b, int):
        return a - b
    return shifted(a, -b if isinstance(b, int) else SizeExpr("mul", (b, -1)))


def is_dense(shape: Sequence[Size], stride: Sequence[Size]) -> bool:
    """Whether elements fill their memory without gaps, in any order. No where sizes are symbols."""
    dims = [(step, size) for step, size in zip(stride, shape, strict=True) if size != 1]
    known = [(step, size) for step, size in dims if isinstance(step, int) and isinstance(size, int)]
    held = 1
    for step, size in sorted(known):
        if step != held:
            return False
        held *= size
    return len(known) == len(dims)
