"""`int`, `float` and `len` of tensors in code that is recorded, and the namespaces that they are put in."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, FunctionType
from typing import Any

import pytest
import torch

import dovetail
from dovetail.reach.stand_ins import StandIns, uses_of


def _calls(x: Any) -> Any:
    return int(x) + len("int")


def _asks(x: Any) -> Any:
    return type(x) is int


def _maps(x: Any) -> Any:
    return [*map(int, x)]


def _attributes(x: Any) -> Any:
    return x.int() + x.float


@pytest.mark.parametrize(
    ("function", "uses"),
    [
        (_calls, {"int": True, "len": True}),
        (_asks, {"type": True, "int": False}),
        (_maps, {"int": False}),
        (_attributes, {}),
    ],
)
def test_uses_of_names(function: FunctionType, uses: dict[str, bool]) -> None:
    assert dict(uses_of(function.__code__)) == uses


@contextmanager
def _put_in(numbers: StandIns, space: dict[str, Any]) -> Iterator[None]:
    def follow(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_globals is space:
            numbers.runs(frame)

    sys.setprofile(follow)
    try:
        yield
    finally:
        sys.setprofile(None)
        numbers.end()


def _namespace(text: str) -> dict[str, Any]:
    made: dict[str, Any] = {"torch": torch, "__name__": "made_up"}
    exec(text, made)
    return made


def test_code_finds_them_and_they_are_gone_afterwards() -> None:
    space = _namespace("def f(x): return int('3', base=8), len('ab'), int(2.5), int(torch.tensor(4))")
    numbers = StandIns()
    with _put_in(numbers, space):
        assert space["f"](None) == (3, 2, 2, 4)
        assert "int" in space
    assert "int" not in space
    assert not numbers.has_given
    assert not numbers.asks_types


def test_a_namespace_of_code_that_asks_is_left_alone() -> None:
    space = _namespace(
        "def f(x): return int(x)\n"
        "def g(x): return type(x) is int\n"
        "def h(x): return f(x), g(3), f(x), 'int' in globals()"
    )
    numbers = StandIns()
    with _put_in(numbers, space):
        assert space["h"](2) == (2, True, 2, False)
    assert numbers.asks_types


def _compiled(function: Callable[..., Any], *args: Any) -> Any:
    return dovetail.compile(function)(*args)


def test_sizes_off_tensors_in_functions() -> None:
    x, index = torch.linspace(-1, 2, 12).view(6, 2), torch.tensor([1, 3, 3])

    def function(x: Any, index: Any) -> Any:
        made = torch.zeros(int(index.max()) + 1, 2).index_add(0, index, x[: len(index)])
        return made, x[: int(index.sum())].exp(), x[x[:, 0] > 0].sum() / len(x[x[:, 0] > 0])

    for a, b in zip(_compiled(function, x, index), function(x, index), strict=True):
        assert torch.equal(a, b)


def test_code_that_asks_for_types_of_such_numbers_is_refused() -> None:
    space = _namespace(
        "def kind(x): return 1 if x.__class__ is bool else 2\ndef f(x): return x[:int(x.sum())] * kind(int(x.sum()))"
    )
    with pytest.raises(dovetail.DovetailError, match="DT-CAPTURE-002"):
        _compiled(space["f"], torch.tensor([1, 1, 0]))
