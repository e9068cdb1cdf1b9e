"""Python numbers that are inputs of a program: what is computed with them are expressions over symbols.

    def f(x, step): return x * (1 - 0.9**step)            mul(x, 1 + 0.9 ** number_1 * -1), for any `step`

Expressions evaluate as Python does, to the same bits. Code that wants a plain number (a size, a key, a text) gets it,
and code that asks whether a number is true gets an answer; both are *facts*, and the program is for numbers of which
they hold. Everything of a program that takes no data, only numbers, can be told before it runs, so facts are a guard.
"""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from dovetail.ir.sizes import OPAQUE, Number, Scalar, SizeExpr, evaluate, symbol
from dovetail.torch_compat.symbols import hint_of, symbol_name
from dovetail.torch_compat.traced_numbers import Plain, traced_number

_LONGEST = 64  # operations in one expression; a longer one is a fact

_OPERATIONS: dict[Callable[..., Any], str] = {
    operator.add: "add",
    operator.mul: "mul",
    operator.truediv: "truediv",
    operator.floordiv: "floordiv",
    operator.mod: "mod",
    operator.abs: "abs",
    operator.and_: "bitand",
    operator.or_: "bitor",
    operator.xor: "bitxor",
    operator.not_: "not",
    **{getattr(operator, name): name for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    **{getattr(builtins, name): name for name in ("abs", "max", "min", "float", "int", "round")},
    **{getattr(math, name): name for name in ("floor", "ceil", "trunc", *OPAQUE)},
}


class NumberFact(NamedTuple):
    """What code was told of an expression: whether it is true, or, with `is_exact`, which number it is."""

    expr: SizeExpr
    answer: Plain
    is_exact: bool

    def holds(self, numbers: Mapping[str, Number]) -> bool:
        """Whether code would be told the same. numbers: by symbol."""
        try:
            found = self.expr.evaluate(numbers)
        except (ArithmeticError, ValueError, TypeError):
            return False
        if not self.is_exact:
            return bool(found) is self.answer
        return type(found) is type(self.answer) and repr(found) == repr(self.answer)

    def __str__(self) -> str:
        if self.is_exact:
            return f"{self.expr} is {self.answer!r}"
        return str(self.expr) if self.answer else f"not ({self.expr})"


class NumberSymbols:
    """A `NumberTrace` whose handles are expressions.

    Attributes: now, by symbol, the numbers in the call that is recorded; facts, in the order in which they were asked.
    """

    def __init__(self, facts: dict[str, NumberFact]) -> None:
        """facts: known from recordings before, by their texts; those that are new are added.

        Python takes 0.0, -0.0 and False for one key, and code can tell them apart.
        """
        self.now: dict[str, Plain] = {}
        self.facts = facts

    def declare(self, name: str, now: Plain) -> Any:
        """A number that code may compute with, which is an input."""
        self.now[name] = now
        return traced_number(self, symbol(name), now)

    def apply(self, function: Callable[..., Any], operands: tuple[Any, ...], result: Plain) -> Any:
        """See `NumberTrace`. What has no expression is computed with the numbers as they are, which are facts."""
        made = self._expression(function, operands)
        if made is not None and _length(made) <= _LONGEST:
            return made
        for handle in operands:
            self.fix(handle, evaluate(handle, self.now))
        return result

    def _expression(self, function: Callable[..., Any], operands: tuple[Any, ...]) -> Scalar | None:
        """What a function of numbers gives, to the bit; None where no expression says so."""
        if function is operator.sub:
            return SizeExpr("add", (operands[0], SizeExpr("mul", (operands[1], -1))))  # -b is exact
        if function is operator.neg:
            return SizeExpr("mul", (operands[0], -1))
        if function is operator.pow:
            return self._power(*operands)
        name = _OPERATIONS.get(function)
        return None if name is None else SizeExpr(name, operands)

    def _power(self, base: Scalar, exponent: Scalar) -> Scalar | None:
        """A power; None for integers with any exponent, which may be too large to compute."""
        if isinstance(exponent, int) or (isinstance(exponent, float) and exponent.is_integer()):
            return SizeExpr("pow", (base, exponent))
        if float not in (type(evaluate(base, self.now)), type(evaluate(exponent, self.now))):
            return None
        if isinstance(base, SizeExpr):  # a negative one may give a complex number
            is_negative = SizeExpr("lt", (base, 0))
            self.decide(is_negative, bool(is_negative.evaluate(self.now)))
        return SizeExpr("pow", (base if isinstance(base, float) else SizeExpr("float", (base,)), exponent))

    def decide(self, handle: Any, answer: bool) -> bool:
        """See `NumberTrace`."""
        if isinstance(handle, SizeExpr):
            self._note(NumberFact(handle, answer, is_exact=False))
        return answer

    def fix(self, handle: Any, number: Plain) -> Plain:
        """See `NumberTrace`."""
        if isinstance(handle, SizeExpr):
            self._note(NumberFact(handle, number, is_exact=True))
        return number

    def _note(self, fact: NumberFact) -> None:
        self.facts.setdefault(str(fact), fact)

    def text(self, handle: Any, now: Plain, convert: Callable[[Any], str]) -> str:
        """See `NumberTrace`."""
        return convert(self.fix(handle, evaluate(handle, self.now)))

    def size_for(self, handle: Any, now: Plain) -> Any:
        """See `NumberTrace`."""
        return self.fix(handle, now)

    def number_for(self, size: Any) -> Any:
        """See `NumberTrace`. A size that is no bare symbol is a plain number from here on."""
        name, hint = symbol_name(size), hint_of(size)
        if name is None or hint is None:
            return size if hint is None else int(size)
        return self.declare(name, hint)

    def is_of_numpy(self, handle: Any) -> bool:
        """See `NumberTrace`: numbers are traced here where Python's own came in."""
        return False


def broken_fact(facts: Iterable[NumberFact], numbers: Mapping[str, Number]) -> NumberFact | None:
    """The first fact that does not hold of these numbers."""
    return next((fact for fact in facts if not fact.holds(numbers)), None)


def _length(expr: Scalar) -> int:
    """How many operations are in an expression, as it is written."""
    if not isinstance(expr, SizeExpr) or expr.op == "symbol":
        return 0
    return 1 + sum(_length(part) for part in expr.args if isinstance(part, SizeExpr))
