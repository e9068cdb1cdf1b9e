"""Functions of ints and sizes that change between calls: each call computes with its own number."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import dovetail

FUNCTIONS: dict[str, Callable[[int], Any]] = {
    "abs": lambda i: abs(i - 20),
    "decimals": lambda i: round(i / 7, 2),
    "tens": lambda i: round(i * 1.5, -1),
    "and": lambda i: i & 5,
    "or": lambda i: i | 5,
    "xor": lambda i: i ^ 5,
    "shifts": lambda i: (i << 2) + (i >> 1),
    "log2": math.log2,
    "logarithms": lambda i: math.log(i) + math.log10(i) + math.log1p(i),
    "exp": lambda i: math.exp(i / 9),
    "waves": lambda i: math.sin(i) + math.cos(i) + math.tan(i),
    "hyperbolic": lambda i: math.sinh(i / 9) + math.cosh(i / 9) + math.tanh(i),
    "arcs": lambda i: math.asin(i / 50) + math.acos(i / 50) + math.atan(i) + math.asinh(i),
    "powers": lambda i: i**0.5 + 2**i + i**-1,
    "roundings": lambda i: math.floor(i / 3) + math.ceil(i / 3) + math.trunc(i / 3 - 5) + round(i / 3),
    "quotients": lambda i: (i - 20) // 3 + i % -4 + (i + 0.5) // 2,
}


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.parametrize("door", ["an int", "a size", "compile"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_each_call_computes_with_its_own_number(name: str, door: str) -> None:
    function = FUNCTIONS[name]

    def program(x: Tensor, y: Any) -> Tensor:
        return x * function(y if isinstance(y, int) else y.shape[0])

    if door == "compile":
        compiled = dovetail.compile(program, dynamic=True)
    else:
        compiled = torch.compile(program, backend="dovetail", dynamic=door == "a size" or None)
    for number in (3, 4, 9, 17, 31):
        y = number if door == "an int" else torch.ones(number)
        results = []
        for called in (program, compiled):
            x = torch.linspace(-2, 3, 7, requires_grad=True)
            made = called(x, y)
            made.sum().backward()
            results.append((made, x.grad))
        for actual, expected in zip(*results, strict=True):
            assert torch.equal(actual, expected), number


def test_a_size_made_of_bits() -> None:
    compiled = torch.compile(
        lambda x: torch.ones(abs(x.shape[0] - 9) + (x.shape[0] & 6)), backend="dovetail", dynamic=True
    )
    for number in (4, 7, 12):
        assert compiled(torch.ones(number)).shape == (abs(number - 9) + (number & 6),)
