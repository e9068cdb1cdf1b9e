"""Pointwise nodes where results may differ by rounding: near the exact ones, and the same for infinities and NaN."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import dovetail
from dovetail.execute.native.formula import reads_place
from dovetail.execute.native.machine import unavailable
from dovetail.execute.native.rounding import in_the_loop
from dovetail.execute.native.rules import RULES

pytestmark = pytest.mark.skipif(bool(unavailable()), reason="no machine code can be made here")

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "exp": torch.exp,
    "tanh": torch.tanh,
    "erf": torch.erf,
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu by tanh": lambda x: F.gelu(x, approximate="tanh"),
    "softplus": F.softplus,
    "mish": F.mish,
    "elu": F.elu,
}
_NUMBERS = [0.0, -0.0, math.inf, -math.inf, math.nan, 88.5, 88.8, -87.0, -88.0, -104.0, 1e-30, -1e-42, 3e38, -3e38]
_UNITS = 8  # in the last place of the result, or of 1 where functions are differences from 1
_PRODUCTS = frozenset({"silu", "gelu", "gelu by tanh", "mish"})  # of x and such a function


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("size", [(7,), (33, 5), (300, 200)])
def test_functions(name: str, size: tuple[int, ...]) -> None:
    function = FUNCTIONS[name]
    x = torch.randn(size) * 6
    x.view(-1)[:: max(x.numel() // len(_NUMBERS), 1)][: len(_NUMBERS)] = torch.tensor(_NUMBERS)[: x.numel()]

    def run(x: Tensor) -> Tensor:
        return function(x * 1.0) * 1.0

    with torch.no_grad():
        found: Tensor = dovetail.compile(run, numerics="fast")(x)
        eager, exact = run(x), run(x.double())
    unit = torch.finfo(torch.float32).eps / 2
    is_finite = exact.isfinite() & eager.isfinite() & (x.abs() < 1e30)
    error = (found.double() - exact).abs()[is_finite]
    size = x.double().abs().clamp(1.0, 20.0) if name in _PRODUCTS else 1.0  # they are 0 where x is small enough
    assert (error <= (_UNITS * unit * exact.abs().clamp_min(1.0) * size)[is_finite]).all()
    assert not found[~x.isnan() & ~eager.isnan()].isnan().any()
    assert found[x.isnan()].isnan().all()


@pytest.mark.parametrize("name", ["gelu", "silu", "tanh", "mish"])
def test_gradients(name: str) -> None:
    x, gradient = torch.randn(60, 40, requires_grad=True), torch.randn(60, 40)
    run: Any = dovetail.compile(lambda x: FUNCTIONS[name](x * 1.5), numerics="fast")
    (found,) = torch.autograd.grad(run(x), x, gradient)
    exact = x.detach().double().requires_grad_()
    (wanted,) = torch.autograd.grad(FUNCTIONS[name](exact * 1.5), exact, gradient.double())
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=2e-6)


def test_elements_are_the_same_wherever_they_stand() -> None:
    with torch.no_grad():
        for function in FUNCTIONS.values():
            run: Any = dovetail.compile(lambda x, function=function: function(x * 1.0) + 1.0, numerics="fast")
            x = torch.randn(1000)
            whole = run(x)
            for first, count in ((0, 3), (5, 64), (17, 100)):
                assert torch.equal(run(x[first : first + count].clone()), whole[first : first + count])


def test_formulas_of_the_loop_ask_for_no_place() -> None:
    for rule in RULES.values():
        for candidate in rule.candidates:
            formula = in_the_loop(candidate)
            if formula != candidate and not reads_place(candidate):
                assert in_the_loop(formula) == formula
    assert not reads_place(in_the_loop(RULES["silu"].candidates[0]))


def test_eager_numerics_keep_eagers_bits() -> None:
    x = torch.randn(200, 30)
    with torch.no_grad():
        for function in FUNCTIONS.values():
            run: Any = dovetail.compile(lambda x, function=function: function(x * 1.0) + 1.0)
            assert torch.equal(run(x), function(x * 1.0) + 1.0)
