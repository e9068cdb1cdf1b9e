"""Checks of `torch_compat.traced_numbers`."""

from __future__ import annotations

import math
import operator
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from dovetail.torch_compat import traced_maths, traced_numbers
from dovetail.torch_compat.checks.difference import first_difference
from dovetail.torch_compat.data_sizes import size_with_hint
from dovetail.torch_compat.dispatch import DispatchMode
from dovetail.torch_compat.symbols import new_shape_env


class TraceOfTexts:
    """Notes what it is told, as text."""

    follows_numpy = True

    def __init__(self) -> None:
        self.told: list[object] = []

    def apply(self, function: Callable[..., Any], operands: tuple[Any, ...], result: object) -> object:
        """See `NumberTrace`."""
        self.told.append((function, operands))
        return f"{function.__name__}{len(self.told)}"

    def decide(self, handle: object, answer: bool) -> bool:
        """See `NumberTrace`."""
        self.told.append((handle, answer))
        return answer

    def fix(self, handle: object, number: Any) -> Any:
        """See `NumberTrace`."""
        self.told.append((handle, number))
        return number

    def text(self, handle: object, now: object, convert: Callable[[Any], str]) -> str:
        """See `NumberTrace`."""
        return f"{handle} as {convert(0.5)}"

    def size_for(self, handle: object, now: object) -> object:
        """See `NumberTrace`."""
        self.told.append(("as a size", handle))
        return now

    def number_for(self, size: object) -> object:
        """See `NumberTrace`."""
        return traced_numbers.traced_number(self, "size", 6)

    def is_of_numpy(self, handle: object) -> bool:
        """See `NumberTrace`."""
        return handle == "of numpy"

    def typed(self, handle: object, now: Any) -> Any:
        """See `NumberTrace`."""
        return now

    def knows(self, handle: object) -> bool:
        """See `NumberTrace`."""
        return handle != "unknown"

    def expect_number(self, handle: object, answer: bool) -> bool:
        """See `NumberTrace`."""
        self.told.append(("expected", handle))
        return answer

    def might_give(self, function: Callable[..., Any], operands: tuple[Any, ...]) -> Any:
        """See `NumberTrace`."""
        return 7.0 if "unknown" in operands else None


class _Seen(DispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.arguments: list[object] = []

    def __torch_dispatch__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
        self.arguments += [*args[1:], *(kwargs or {}).values()]
        return args[0]


def check_is_unknown() -> str | None:
    """Its trace says so; what has to be true of it is told as such."""
    trace = TraceOfTexts()
    number, other = (traced_numbers.traced_number(trace, name, True) for name in ("x", "unknown"))
    torch._check(other)
    return first_difference(
        ("whether they are", [traced_numbers.is_unknown(item) for item in (number, other, 3)], [False, True, False]),
        ("what is told", trace.told, [("expected", "unknown")]),
    )


def check_result_now() -> str | None:
    """A function that fails with a number fails, unless another number may stand there."""
    trace = TraceOfTexts()
    nodes = [traced_numbers.traced_number(trace, name, 0.0).node for name in ("x", "unknown")]
    try:
        traced_numbers.result_now(math.log, nodes[:1])
        failure = "nothing"
    except ValueError as error:
        failure = type(error).__name__
    return first_difference(
        ("of a known number", failure, "ValueError"),
        ("of another one", traced_numbers.result_now(math.log, nodes[1:]), 7.0),
    )


def check_traced_number() -> str | None:
    """Arithmetic and questions are told, and give what they give on plain numbers."""
    trace = TraceOfTexts()
    number = traced_numbers.traced_number(trace, "x", 0.5)
    answer = 1 - 0.9**number > 0.25
    was = bool(answer)
    expected = [
        (operator.pow, (0.9, "x")),
        (operator.sub, (1.0, "pow1")),
        (operator.gt, ("sub2", 0.25)),
        ("gt3", False),
    ]
    return first_difference(("the answer", was, False), ("what is told", trace.told[-4:], expected))


def check_is_traced() -> str | None:
    """Traced numbers are known from others, and reach operators as they are."""
    number = traced_numbers.traced_number(TraceOfTexts(), "x", 0.5)
    x = torch.ones(2)
    with torch.no_grad(), _Seen() as seen:
        x.mul(number)
        x.add(x, alpha=number)
    known = [traced_numbers.is_traced(argument) for argument in seen.arguments]
    return first_difference(
        ("what is said of a plain number", traced_numbers.is_traced(0.5), False),
        ("what is said of arguments of operators", known, [True, False, True]),
    )


def check_handle_of() -> str | None:
    """The handle is the one that the number was made with."""
    number = traced_numbers.traced_number(TraceOfTexts(), "x", 3)
    return first_difference(("the handle", traced_numbers.handle_of(number), "x"))


def check_number_now() -> str | None:
    """The number as it is now, without a trace."""
    trace = TraceOfTexts()
    number = traced_numbers.traced_number(trace, "x", 3)
    now = traced_numbers.number_now(number)
    return first_difference(("the number", now, 3), ("what is told", trace.told, []))


def check_as_plain() -> str | None:
    """Traced numbers become plain ones, in tuples too, without a trace; other things stay what they are."""
    trace = TraceOfTexts()
    number = traced_numbers.traced_number(trace, "x", 3)
    found = [traced_numbers.as_plain(item) for item in (number, ("a", number), "a")]
    return first_difference(("the items", found, [3, ("a", 3), "a"]), ("what is told", trace.told, []))


def check_keys_found() -> str | None:
    """An ordered table finds keys that are traced numbers, without a trace."""
    trace = TraceOfTexts()
    held = OrderedDict[Any, str]()
    with traced_maths.traced_maths():
        held[traced_numbers.traced_number(trace, "x", 3)] = "three"
        held[traced_numbers.traced_number(trace, "y", 0.5)] = "half"
    told = list(trace.told)
    with traced_numbers.keys_found():
        found = list(held.values())
    return first_difference(("what is there", found, ["three", "half"]), ("what is told", trace.told, told))


def check_fixed_number() -> str | None:
    """The number as it is now, and the trace is told."""
    trace = TraceOfTexts()
    number = traced_numbers.traced_number(trace, "x", 3)
    now = traced_numbers.fixed_number(number)
    return first_difference(("the number", now, 3), ("what is told", trace.told, [("x", 3)]))


def check_traced_number_beside_a_size() -> str | None:
    """A number and a symbol of torch's make a traced number; where torch computes itself, it asks for a size."""
    trace = TraceOfTexts()
    number = traced_numbers.traced_number(trace, "x", 3)
    size = size_with_hint(new_shape_env(), 6)
    with traced_maths.traced_maths():
        made = [number + size, size - number]
    by_torch = size.node.add(number.node)
    return first_difference(
        ("the numbers", list(map(traced_numbers.number_now, made)), [9, 3]),
        ("what is told", trace.told[:2], [(operator.add, ("x", "size")), (operator.sub, ("size", "x"))]),
        ("what torch asks", (by_torch.hint, trace.told[-1]), (9, ("as a size", "x"))),
    )


def check_plain_number() -> str | None:
    """A number of NumPy's becomes one of Python's, by a function that is told; another one stays what it is."""
    trace = TraceOfTexts()
    made = traced_numbers.plain_number(traced_numbers.traced_number(trace, "of numpy", 0.5))
    number = traced_numbers.traced_number(trace, "x", 0.5)
    return first_difference(
        ("what is told", trace.told, [(float, ("of numpy",))]),
        ("the handle", traced_numbers.handle_of(made), "float1"),
        ("whether another number stays", traced_numbers.plain_number(number) is number, True),
    )


def check_numpy_result() -> str | None:
    """A function of numbers is NumPy's where one of them is, unless it gives one of several classes."""
    result = traced_numbers.numpy_result
    return first_difference(
        ("a sum", repr(result(operator.add, [np.int64(1), 2])), repr(np.int64(3))),
        ("a sum of Python's numbers", result(operator.add, [1, 2]), None),
        ("the largest of two classes", result(max, [np.int64(1), 2]), None),
    )


def check_as_size() -> str | None:
    """The trace tells what a number is as a size; a constant is itself."""
    trace = TraceOfTexts()
    number = traced_numbers.traced_number(trace, "x", 3)
    made = [traced_numbers.as_size(item) for item in (number, traced_numbers.traced_number(trace, 4, 4))]
    return first_difference(("the sizes", made, [3, 4]), ("what is told", trace.told, [("as a size", "x")]))


CHECKS = (
    check_as_size,
    check_is_unknown,
    check_result_now,
    check_traced_number,
    check_plain_number,
    check_numpy_result,
    check_is_traced,
    check_handle_of,
    check_number_now,
    check_as_plain,
    check_keys_found,
    check_fixed_number,
    check_traced_number_beside_a_size,
)
