"""Python numbers that calls differ in: what is computed with them are expressions over symbols.

    def f(x, step): return x * (1 - 0.9**step)            mul(x, 1 + 0.9 ** number_1 * -1), for any `step`
    def g(x): return x / math.sqrt(len(x))                div(x, math.sqrt(s0)), for any size of `x`

They are inputs of a program, or sizes of its inputs.

Expressions evaluate as Python does, to the same bits. Code that wants a plain number (a size, a key, a text) gets it,
and code that asks whether a number is true gets an answer; both are *facts*, and the program is for numbers of which
they hold. Everything of a program that takes no data, only numbers, can be told before it runs, so facts are a guard.
"""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple

import torch

from dovetail.ir.convert import scalar_of, tree_to_scalar
from dovetail.ir.sizes import OPAQUE, Number, Scalar, SizeExpr, evaluate, symbol
from dovetail.torch_compat.fakes import FakeMode, unknown_number
from dovetail.torch_compat.symbols import (
    guard_trees,
    hint_of,
    hints_of_symbols,
    number_symbol,
    product_of_symbols,
    quotient_of_symbols,
    shape_env_of,
    unknown_symbols,
)
from dovetail.torch_compat.traced_numbers import Plain, is_traced, traced_number

_LONGEST = 64  # operations in one expression; a longer one is a fact

OF_TORCH: dict[str, Callable[..., Any]] = {
    **{name: getattr(operator, name) for name in ("add", "mul", "floordiv", "mod")},
    **{name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
}
"""What torch computes of whole numbers as Python does."""

_ROUNDING: dict[str, Callable[..., Any]] = {
    **{name: getattr(math, name) for name in ("floor", "ceil", "trunc")},
    "int": torch.sym_int,
    "round": round,
}
_BEFORE_ROUNDING: dict[str, Callable[..., Any]] = {"truediv": quotient_of_symbols, "mul": product_of_symbols}
_CHOOSING = frozenset(("max", "min"))
_OF_MANY = frozenset(("add", "mul"))  # of two numbers and more

_SOME: dict[type, tuple[Plain, ...]] = {float: (0.625, 5.25, 11.5), int: (3, 8, 17)}  # where data decide
_TURNS = len(_SOME[int])

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
        return _is_same(found, self.answer) if self.is_exact else bool(found) is self.answer

    def __str__(self) -> str:
        if self.is_exact:
            return f"{self.expr} is {self.answer!r}"
        return str(self.expr) if self.answer else f"not ({self.expr})"

    @property
    def condition(self) -> SizeExpr:
        """What is true where it holds."""
        if self.is_exact:
            return SizeExpr("eq", (self.expr, self.answer))
        return self.expr if self.answer else SizeExpr("not", (self.expr,))


class NumberSymbols:
    """A `NumberTrace` whose handles are expressions.

    Attributes: now, by symbol, the numbers in the call that is recorded; facts, in the order in which they were asked;
    symbols, of the recorder, for which every size symbol is to be known; inputs, names of numbers that are inputs;
    unknown, names of those that data decide: in `now` they are something or other of their class; expected, what code
    has said of these.
    """

    follows_numpy = False

    def __init__(
        self,
        facts: dict[str, NumberFact],
        mode: FakeMode,
        may_be_sizes: bool = False,
        *,
        are_guarded: bool = True,
    ) -> None:
        """facts: known from recordings before, by their texts; those that are new are added.

        Python takes 0.0, -0.0 and False for one key, and code can tell them apart.
        mode: of fakes. may_be_sizes: whole numbers that are inputs may be sizes and places, as symbols; otherwise they
        are facts then. are_guarded: calls are asked whether facts hold. Otherwise, sizes that facts are about are
        fixed, which torch sees to.
        """
        self.now: dict[str, Plain] = {}
        self.facts = facts
        self.inputs, self.unknown = set[str](), set[str]()
        self.expected: list[Scalar] = []
        self._mode, self._may_be_sizes, self._are_guarded = mode, may_be_sizes, are_guarded
        self.symbols: dict[str, Any] = {}
        self._sizes: dict[str, torch.SymInt | torch.SymFloat] = {}
        self._noted = 0

    def declare(self, name: str, now: Plain) -> Any:
        """A number that code may compute with, which is an input."""
        self.now[name] = now
        self.inputs.add(name)
        return traced_number(self, symbol(name), now)

    def apply(self, function: Callable[..., Any], operands: tuple[Any, ...], result: Plain) -> Any:
        """See `NumberTrace`. What has no expression is computed with the numbers as they are, which are facts."""
        made = self._expression(function, operands)
        if made is not None and _length(made) > _LONGEST:
            size = self._size(made) if isinstance(made, SizeExpr) and type(result) is int else None
            made = None if size is None else scalar_of(size)  # torch may know a shorter way to say so
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
            found = self._of_sizes_alone(handle)
            if found is not None:
                return bool(found)  # torch notes that it is
            self._note(NumberFact(handle, answer, is_exact=False))
        return answer

    def fix(self, handle: Any, number: Plain) -> Plain:
        """See `NumberTrace`."""
        if isinstance(handle, SizeExpr):
            found = self._of_sizes_alone(handle) if type(number) in (bool, int) else None
            if found is not None:
                return type(number)(found)  # torch notes that it is
            self._note(NumberFact(handle, number, is_exact=True))
        return number

    @property
    def size_conditions(self) -> list[SizeExpr]:
        """Facts of sizes of tensors, and no other numbers."""
        return [fact.condition for fact in self.facts.values() if self.inputs.isdisjoint(fact.expr.symbols())]

    def _of_sizes_alone(self, handle: SizeExpr) -> Any:
        """What torch knows an expression by that hangs on sizes of tensors, and no other number; None if nothing."""
        return self._size(handle) if self.inputs.isdisjoint(handle.symbols()) else None

    def knows(self, handle: Any) -> bool:
        """See `NumberTrace`."""
        return not isinstance(handle, SizeExpr) or self.unknown.isdisjoint(handle.symbols())

    def expect_number(self, handle: Any, answer: bool) -> bool:
        """See `NumberTrace`. The program checks what data decide."""
        if self.knows(handle):
            return self.decide(handle, answer)
        self.expected.append(handle)
        return True

    def _note(self, fact: NumberFact) -> None:
        if not self.knows(fact.expr):
            raise unknown_number()
        if not self._are_guarded:
            for name in fact.expr.symbols():
                int(self.symbols[name])
            return
        self.facts.setdefault(str(fact), fact)

    def text(self, handle: Any, now: Plain, convert: Callable[[Any], str]) -> str:
        """See `NumberTrace`."""
        return convert(self.fix(handle, evaluate(handle, self.now)))

    def size_for(self, handle: Any, now: Plain) -> Any:
        """See `NumberTrace`."""
        size = self._size(handle) if type(now) is int and isinstance(handle, SizeExpr) else None
        return self.fix(handle, now) if size is None else size

    def _size(self, handle: SizeExpr) -> Any:
        """A number as torch computes with sizes; None where it may not do so as Python does."""
        env, names = self._mode.shape_env, set(handle.symbols())
        if env is None or not _is_of_torch(handle, self.now):
            return None
        if not (self._may_be_sizes or names.isdisjoint(self.inputs)):
            return None
        for name in names - self.symbols.keys():
            made = number_symbol(env, name, self.now[name])
            if made is None:
                return None
            self._sizes[name] = self.symbols[name] = made
        size = _computed_by_torch(handle, self.symbols)
        return None if is_traced(size) else size  # else it would be some number or other

    def note_sizes(self) -> None:
        """Let what torch has assumed of these symbols be facts."""
        if self._sizes:
            trees = guard_trees(self._mode.shape_env, self._noted)
            self._noted += len(trees)
            for expr in map(tree_to_scalar, trees):
                if isinstance(expr, SizeExpr) and not self._sizes.keys().isdisjoint(expr.symbols()):
                    self._note(NumberFact(expr, answer=True, is_exact=False))

    def with_known_sizes(self, result: Any) -> Any:
        """What an operator gives, whose sizes are above 1, or known: layouts and kernels differ there."""
        for item in (result if isinstance(result, list | tuple) else (result,)) if self._sizes else ():
            sizes: Sequence[Any] = item.shape if isinstance(item, torch.Tensor) else ()
            for size in sizes:
                if type(size) is not int:
                    hint = hint_of(size)
                    bool(size == hint if hint in (0, 1) else size >= 2)
        return result

    def told(self, result: Any) -> Any:
        """What code is told of what an operator gives: of a float, as torch knows it, a traced number."""
        return self.number_for(result) if type(result) is torch.SymFloat and not is_traced(result) else result

    def number_for(self, size: Any) -> Any:
        """See `NumberTrace`. Dynamo, which makes graphs of subgraphs, has symbols of its own."""
        expr = scalar_of(size)
        if not isinstance(expr, SizeExpr):
            return expr
        if shape_env_of(size) is not self._mode.shape_env:
            return size
        self.now.update(hints_of_symbols(size))
        unknown = unknown_symbols(size)
        self.unknown.update(unknown)
        self.now.update((name, _SOME[kind][0]) for name, kind in unknown.items())
        now = hint_of(size) if not unknown else self._might_be(expr.evaluate)
        return size if now is None else traced_number(self, expr, now)

    def might_give(self, function: Callable[..., Any], operands: tuple[Any, ...]) -> Plain | None:
        """See `NumberTrace`."""
        names = {name for x in operands if isinstance(x, SizeExpr) for name in x.symbols()}
        if self.unknown.isdisjoint(names):
            return None
        found: Plain | None = self._might_be(lambda numbers: function(*(evaluate(x, numbers) for x in operands)))
        return found

    def _might_be(self, compute: Callable[[Mapping[str, Number]], Any]) -> Any:
        """What is computed with some numbers in the place of those that are not known; None if with none."""
        for turn in range(_TURNS):
            some = {name: _SOME[type(self.now[name])][turn] for name in self.unknown}
            try:
                return compute({**self.now, **some})
            except (ArithmeticError, ValueError):
                continue
        return None

    def typed(self, handle: Any, now: Plain) -> Any:
        """See `NumberTrace`."""
        return now

    def is_of_numpy(self, handle: Any) -> bool:
        """See `NumberTrace`: numbers are traced here where Python's own came in."""
        return False


def _is_of_torch(handle: Any, now: Mapping[str, Plain], is_rounded: bool = False) -> bool:
    """Whether torch computes a whole number, or compares such, as Python does: it puts sums of floats in order.

    is_rounded: the number is rounded next, and may be a float. now: what symbols are.
    """
    if not isinstance(handle, SizeExpr):
        return is_rounded or type(handle) is int
    if handle.op == "symbol":
        return is_rounded or type(now[str(handle.args[0])]) is int
    if handle.op in _ROUNDING and isinstance(handle.args[0], SizeExpr):
        inner = handle.args[0]
        is_number = inner.op == "symbol"
        return is_number or (inner.op in _BEFORE_ROUNDING and all(_is_of_torch(part, now, True) for part in inner.args))
    return (handle.op in OF_TORCH or handle.op in _CHOOSING) and all(_is_of_torch(part, now) for part in handle.args)


def _computed_by_torch(handle: Any, symbols: Mapping[str, Any]) -> Any:
    if not isinstance(handle, SizeExpr):
        return handle
    if handle.op == "symbol":
        return symbols[str(handle.args[0])]
    args = [_computed_by_torch(part, symbols) for part in handle.args]
    if handle.op in _CHOOSING:
        chosen = args[0]
        for other in args[1:]:  # which one it is, is asked
            is_next = other > chosen if handle.op == "max" else other < chosen
            chosen = other if is_next else chosen
        return chosen
    function = {**OF_TORCH, **_ROUNDING, **_BEFORE_ROUNDING}[handle.op]
    return reduce(function, args) if handle.op in _OF_MANY else function(*args)


def broken_fact(facts: Iterable[NumberFact], numbers: Mapping[str, Number]) -> NumberFact | None:
    """The first fact that does not hold of these numbers."""
    return next((fact for fact in facts if not fact.holds(numbers)), None)


def all_hold(facts: Collection[NumberFact]) -> Callable[[Mapping[str, Number]], bool]:
    """What tells whether all facts hold of numbers, in Python's own code: it runs before each call."""
    known: dict[str, Any] = {"math": math, "is_same": _is_same}
    names = sorted({name for fact in facts for name in fact.expr.symbols()})
    lines = [f"        {name} = numbers[{name!r}]\n" for name in names]
    for number, fact in enumerate(facts):
        known[f"answer_{number}"] = fact.answer
        holds = f"is_same({fact.expr}, answer_{number})" if fact.is_exact else f"bool({fact.expr}) is {fact.answer}"
        lines.append(f"        if not {holds}:\n            return False\n")
    failed = "    except (ArithmeticError, ValueError, TypeError):\n        return False\n"
    source = f"def hold(numbers):\n    try:\n{''.join(lines)}{failed}    return True\n"
    exec(compile(source, "<dovetail facts about numbers>", "exec"), known)
    made: Callable[[Mapping[str, Number]], bool] = known["hold"]
    return made


def _is_same(number: Plain, answer: Plain) -> bool:
    return type(number) is type(answer) and repr(number) == repr(answer)


def _length(expr: Scalar) -> int:
    """How many operations are in an expression, as it is written."""
    if not isinstance(expr, SizeExpr) or expr.op == "symbol":
        return 0
    return 1 + sum(_length(part) for part in expr.args if isinstance(part, SizeExpr))
