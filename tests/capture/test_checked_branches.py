"""Branches on data of which one way only raises are recorded the other way, and checked; truth values are results.

PYTEST_DONT_REWRITE: its own asserts branch further, to say what is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import dovetail
from dovetail.errors import DataDependentControlFlow, UnexpectedSize


def _raises_if(x: Tensor) -> Tensor:
    if (x < 0).any():
        raise ValueError("negative")
    return x.sqrt()


def _asserts(x: Tensor) -> Tensor:
    assert (x >= 0).all(), "negative"
    return x.sqrt()


def _raises_otherwise(x: Tensor) -> Tensor:
    if torch.all(x >= 0):
        return x.sqrt()
    lowest = x.min()
    raise ValueError(f"{lowest} is negative")


def _of_numbers(x: Tensor) -> Tensor:
    if x.min().item() < 0:
        raise ValueError("negative")
    assert x.to(torch.int64).max().item() <= 3
    return x.sqrt()


def _of_torch(x: Tensor) -> Tensor:
    return functional.gaussian_nll_loss(torch.zeros(3), torch.ones(3), x)


def _of_distributions(x: Tensor) -> Tensor:
    return torch.distributions.Exponential(x + 0.5, validate_args=True).log_prob(x + 1)


@pytest.mark.parametrize(
    "function", [_raises_if, _asserts, _raises_otherwise, _of_numbers, _of_torch, _of_distributions]
)
def test_a_check_is_part_of_the_program(function: Callable[[Tensor], Tensor]) -> None:
    compiled = dovetail.compile(function)
    for x in (torch.arange(3.0), torch.rand(3)):
        assert torch.equal(compiled(x), function(x))
    bad = torch.tensor([1.0, -2.0, 3.0])
    with pytest.raises((ValueError, AssertionError)):
        function(bad)
    with pytest.raises(UnexpectedSize):
        compiled(bad)
    assert torch.equal(compiled(torch.ones(3)), function(torch.ones(3)))
    assert compiled.stats.captures == 1


def test_a_check_that_fails_comes_before_what_is_written_after_it() -> None:
    def update(x: Tensor) -> Tensor:
        if (x < 0).any():
            raise ValueError("negative")
        return x.mul_(2).sum()

    compiled, x = dovetail.compile(update), torch.ones(2)
    assert compiled(x).item() == 4
    x.neg_()
    with pytest.raises(UnexpectedSize):
        compiled(x)
    assert x.tolist() == [-2, -2]


def test_a_check_under_gradients() -> None:
    def loss(x: Tensor) -> Tensor:
        y = x * 2
        if not torch.isfinite(y).all():
            raise ValueError("it diverges")
        return y.square().sum()

    x = torch.ones(2, requires_grad=True)
    dovetail.compile(loss)(x).backward()
    assert x.grad is not None
    assert x.grad.tolist() == [8, 8]


def test_a_check_in_a_frozen_model() -> None:
    class Checked(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return _asserts(x)

    frozen = dovetail.freeze(Checked().eval(), (torch.ones(2),))
    assert frozen(torch.full((2,), 4.0)).tolist() == [2, 2]
    with pytest.raises(UnexpectedSize):
        frozen(torch.full((2,), -4.0))


def test_a_branch_that_goes_on_both_ways_or_may_be_caught_is_refused() -> None:
    def both(x: Tensor) -> Tensor:
        if (x < 0).any():
            return x
        return x + 1

    def caught(x: Tensor) -> Tensor:
        try:
            if (x < 0).any():
                raise ValueError("negative")
        except ValueError:
            return x
        return x + 1

    for function in (both, caught):
        with pytest.raises(DataDependentControlFlow):
            dovetail.compile(function)(torch.ones(2))


@pytest.mark.parametrize(
    "question",
    [
        torch.equal,
        torch.allclose,
        lambda x, y: x.equal(y),
        lambda x, y: x.allclose(y, atol=1e-2),
        lambda x, y: (x == y).all().item(),
        lambda x, y: {"same": torch.equal(x, y), "sum": x + y},
    ],
)
def test_a_truth_value_is_a_result(question: Callable[[Tensor, Tensor], Any]) -> None:
    compiled, x = dovetail.compile(question), torch.arange(3.0)
    for y in (x, x.clone(), x + 1, x + 1e-3, torch.tensor([0.0, 1.0, math.nan])):
        wanted, found = question(x, y), compiled(x, y)
        if isinstance(wanted, dict):
            assert found["same"] is wanted["same"]
            assert torch.equal(found["sum"].nan_to_num(), wanted["sum"].nan_to_num())
        else:
            assert found is wanted


def test_tensors_of_other_shapes_are_not_equal() -> None:
    assert dovetail.compile(torch.equal)(torch.ones(2), torch.ones(3)) is False
