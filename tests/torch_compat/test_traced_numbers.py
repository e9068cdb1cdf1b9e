"""Traced numbers: every operation gives what Python's own numbers give, and notes how to compute it again."""

from __future__ import annotations

import builtins
import itertools
import math
import operator
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from dovetail.torch_compat.traced_maths import traced_maths
from dovetail.torch_compat.traced_numbers import (
    fixed_number,
    handle_of,
    is_traced,
    number_now,
    traced_number,
)

FLOATS = (0.0, -0.0, 1.0, -1.0, 0.1, 2.5, -2.5, 3.0, 1e-320, 1e308, math.inf, -math.inf, math.nan)
INTS = (0, 1, -1, 2, 3, -7, 1000, 2**53 + 1)
BOOLS = (False, True)
NUMBERS: tuple[Any, ...] = (*FLOATS, *INTS, *BOOLS)


class Trace:
    """Keeps every operation, so that it can be computed again from other numbers."""

    def __init__(self) -> None:
        self.notes: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []
        self.decided: list[bool] = []
        self.fixed: list[Any] = []
        self.texts = 0

    def apply(self, function: Callable[..., Any], operands: tuple[Any, ...], result: Any) -> Any:
        self.notes.append((function, operands))
        return Handle(len(self.notes) - 1)

    def decide(self, handle: Any, answer: bool) -> bool:
        self.decided.append(answer)
        return answer

    def fix(self, handle: Any, number: Any) -> Any:
        self.fixed.append(number)
        return number

    def text(self, handle: Any, now: Any, convert: Callable[[Any], str]) -> str:
        self.texts += 1
        return f"<{convert(0.25)}>"

    def typed(self, handle: Any, now: Any) -> Any:
        """None of these is of NumPy."""
        return now

    def is_of_numpy(self, handle: Any) -> bool:
        return False

    def knows(self, handle: Any) -> bool:
        return True

    def expect_number(self, handle: Any, answer: bool) -> bool:
        return self.decide(handle, answer)

    def might_give(self, function: Callable[..., Any], operands: tuple[Any, ...]) -> None:
        return None

    def again(self, number: Any, given: Sequence[Any]) -> Any:
        """A traced number, or a plain one, computed again from the inputs."""
        if not is_traced(number) and not isinstance(number, Handle):
            return number
        handle = number if isinstance(number, Handle) else handle_of(number)
        if not isinstance(handle, Handle):
            return handle
        if handle.number < 0:
            return given[-1 - handle.number]
        function, operands = self.notes[handle.number]
        return function(*[self.again(operand, given) for operand in operands])


class Handle:
    """Of an input, if it is negative: -1 is the first."""

    def __init__(self, number: int) -> None:
        self.number = number


def _bits(number: Any) -> Any:
    if type(number) is float:
        return float, "nan" if math.isnan(number) else struct.pack("<d", number)
    return type(number), number


def _outcome(function: Callable[..., Any], numbers: Sequence[Any]) -> Any:
    try:
        return function(*numbers)
    except (ArithmeticError, ValueError, TypeError, AttributeError) as error:
        return type(error)


def _agree(function: Callable[..., Any], numbers: Sequence[Any], traced: Sequence[bool]) -> None:
    """The same with some of the numbers traced: the result, its type, the error; and again from what was noted."""
    expected = _outcome(function, numbers)
    trace = Trace()
    given = [
        traced_number(trace, Handle(-1 - n), x) if t else x
        for n, (x, t) in enumerate(zip(numbers, traced, strict=True))
    ]
    found = _outcome(function, given)
    now = number_now(found) if is_traced(found) else found
    assert _bits(now) == _bits(expected), f"{numbers}: {now!r} instead of {expected!r}"
    if isinstance(expected, bool | int | float) and not trace.fixed and not trace.decided:
        assert is_traced(found), "the result does not depend on the numbers any more, and nobody was told"
    if is_traced(found):
        assert _bits(trace.again(found, numbers)) == _bits(expected)


@pytest.fixture
def maths() -> Iterator[None]:
    with traced_maths():
        yield


def _later(name: str) -> Callable[..., Any]:
    """A function of `math` or a built-in one, as it is when it is called: others are there while numbers are traced."""

    def call(*numbers: Any) -> Any:
        return getattr(math if hasattr(math, name) else builtins, name)(*numbers)

    call.__name__ = name
    return call


TWO: tuple[Callable[..., Any], ...] = (
    *(operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod),
    *(operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge),
    *(_later(name) for name in ("max", "min", "atan2", "copysign", "fmod")),
)
ONE: tuple[Callable[..., Any], ...] = (
    *(operator.neg, operator.pos, abs),
    *map(_later, ("floor", "ceil", "trunc", "sqrt", "exp", "log", "isnan", "isinf", "isfinite", "cos", "sin")),
    *map(_later, ("tanh", "log2", "log10", "expm1", "log1p")),
    *(lambda x: x + 1, lambda x: 1 - x, lambda x: 2.0 * x, lambda x: 1 / x, lambda x: x**2, lambda x: 0.9**x),
)


def _name(function: Callable[..., Any]) -> str:
    return (
        f"{function.__name__}:{function.__code__.co_firstlineno}"
        if hasattr(function, "__code__")
        else function.__name__
    )


@pytest.mark.parametrize("function", TWO, ids=_name)
@pytest.mark.usefixtures("maths")
def test_two_numbers(function: Callable[..., Any]) -> None:
    for a, b in itertools.product(NUMBERS, NUMBERS):
        for traced in ((True, True), (True, False), (False, True)):
            _agree(function, (a, b), traced)


@pytest.mark.parametrize("function", ONE, ids=_name)
@pytest.mark.usefixtures("maths")
def test_one_number(function: Callable[..., Any]) -> None:
    for number in NUMBERS:
        _agree(function, (number,), (True,))


@pytest.mark.usefixtures("maths")
def test_powers() -> None:
    bases = (*FLOATS, 0, 1, -1, 2, 3, -7, False, True)
    exponents = (*FLOATS, 0, 1, -1, 2, 5, -3, False, True)
    for base, exponent in itertools.product(bases, exponents):
        if isinstance(_outcome(operator.pow, (base, exponent)), complex):
            continue
        for traced in ((True, True), (True, False), (False, True)):
            _agree(operator.pow, (base, exponent), traced)


def test_quotient_and_remainder_at_once() -> None:
    with traced_maths():
        pair = divmod(traced_number(Trace(), Handle(-1), 1.0), 0.1)
    assert tuple(map(number_now, pair)) == divmod(1.0, 0.1)


@pytest.mark.parametrize("function", [operator.and_, operator.or_, operator.xor], ids=lambda f: f.__name__)
@pytest.mark.usefixtures("maths")
def test_bits(function: Callable[..., Any]) -> None:
    for numbers in (*itertools.product(BOOLS, BOOLS), *itertools.product(INTS, INTS)):
        for traced in ((True, True), (True, False), (False, True)):
            _agree(function, numbers, traced)


@pytest.mark.usefixtures("maths")
def test_formulas() -> None:
    """What optimizers compute: bias corrections, warm-ups, decays."""
    formulas: tuple[Callable[..., Any], ...] = (
        lambda step, beta: 1 - beta**step,
        lambda step, beta: (1 - beta**step) ** 0.5,
        lambda step, beta: -beta / (1 - beta ** (step + 1)) * math.sqrt(step),
        lambda step, beta: max(0.0, min(1.0, step / 10)) * beta,
        lambda step, beta: 2 / (1 - beta) - 1 - 2 * step * beta**step / (1 - beta**step),
        lambda step, beta: math.exp(-beta * step) + abs(beta - step) // 3,
    )
    for formula in formulas:
        for step, beta in itertools.product((1, 2.0, 5, 1000.0), (0.9, 0.999, 0.5)):
            _agree(formula, (step, beta), (True, True))
            _agree(formula, (step, beta), (True, False))


@pytest.mark.parametrize("number", NUMBERS, ids=repr)
def test_whether_it_is_true_is_told(number: Any) -> None:
    trace = Trace()
    with traced_maths():
        assert bool(traced_number(trace, Handle(-1), number) != 0) is bool(number != 0)
    assert trace.decided == [bool(number != 0)]


@pytest.mark.parametrize("number", [0, 3, -7])
def test_what_becomes_a_plain_number_is_told(number: int) -> None:
    trace = Trace()
    traced = traced_number(trace, Handle(-1), number)
    assert list(range(10))[traced] == list(range(10))[number]
    assert trace.fixed == [number]
    assert fixed_number(traced) == number
    assert trace.fixed == [number, number]


def test_text_is_up_to_the_trace() -> None:
    trace = Trace()
    with traced_maths():
        found = [text(traced_number(trace, Handle(-1), 1.5)) for text in (str, repr, "{}".format, "{:.1f}".format)]
    assert found == ["<0.25>", "<0.25>", "<0.25>", "<0.2>"]
    assert trace.texts == 4


def test_a_complex_power_is_no_traced_number() -> None:
    trace = Trace()
    with traced_maths():
        try:
            found = traced_number(trace, Handle(-1), -2.0) ** 0.5
        except Exception:
            return
    assert not is_traced(found) or trace.fixed


def test_other_functions_of_math_and_other_numbers_are_as_ever() -> None:
    before = (math.sqrt, max, min, math.floor)
    with traced_maths():
        assert math.sqrt(4.0) == 2.0
        assert max([1, 3], key=lambda x: -x) == 1
        assert min("b", "a") == "a"
        assert max([], default=3) == 3
    assert (math.sqrt, max, min, math.floor) == before


def test_plain_numbers_are_not_traced() -> None:
    assert not any(map(is_traced, (*NUMBERS, None, "text")))
