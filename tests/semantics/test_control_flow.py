"""Operators over sub-programs: through Dynamo they are captured, gradients included; by themselves they are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._higher_order_ops.map import map as map_over
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

import dovetail
from dovetail.errors import UnsupportedHigherOrderOperator
from tests.doors import through_dynamo
from tests.semantics.check import Case, Make, assert_like_eager, leaf

pytestmark = pytest.mark.usefixtures("alone")


def _branches(condition: bool) -> Case:
    net = nn.Linear(3, 3)

    def f(condition: Tensor, x: Tensor) -> Tensor:
        chosen = torch.cond(condition, lambda x: net(x).relu(), lambda x: x.cos() - 1, (x.sin(),))
        return chosen * x

    return Case(f, (torch.tensor(condition), leaf(2, 3)), module=net)


def case_a_condition_that_holds() -> Case:
    return _branches(condition=True)


def case_a_condition_that_does_not() -> Case:
    return _branches(condition=False)


def case_a_condition_that_is_computed() -> Case:
    def f(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return torch.cond(x.sum() > y.sum(), lambda x, y: (x * y, x + 1), lambda x, y: (x + y, y.sin()), (x, y))

    return Case(f, (leaf(3), leaf(3)))


def case_one_condition_in_another() -> Case:
    def inner(x: Tensor) -> Any:
        return torch.cond(x.max() > 1, lambda x: x.exp(), lambda x: x * 2, (x,))

    return Case(lambda x: torch.cond(x.sum() > 0, inner, lambda x: x.sin(), (x,)), (leaf(3),))


def case_a_branch_that_draws() -> Case:
    def f(x: Tensor) -> Tensor:
        y = torch.cond(x.sum() > -9, lambda x: x * torch.rand(3), lambda x: x.sin(), (x,))
        return F.dropout(y, 0.5)

    return Case(f, (leaf(3),))


def case_map() -> Case:
    return Case(lambda x, y: map_over(lambda row, y: (row * y).sin(), x, y), (leaf(5, 3), leaf(3)))


def case_while_loop() -> Case:
    def f(count: Tensor, x: Tensor) -> Any:
        return while_loop(lambda i, x: i < 5, lambda i, x: (i + 1, x * 1.1 + i), (count, x))

    return Case(f, (torch.tensor(0), torch.randn(3)))


CASES = [make for name, make in globals().items() if name.startswith("case_")]


@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__.removeprefix("case_"))
def test_like_eager(make: Make) -> None:
    assert_like_eager(make, through_dynamo)


def test_another_branch_in_the_next_call() -> None:
    def f(x: Tensor) -> Any:
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x * 3, (x,))

    compiled = torch.compile(f, backend="dovetail", fullgraph=True)
    for sign in (1, -1, 1):
        x = (sign * torch.ones(3)).requires_grad_()
        result = compiled(x)
        assert torch.equal(result, x.sin() if sign > 0 else x * 3)
        (gradient,) = torch.autograd.grad(result.sum(), x)
        assert torch.equal(gradient, x.cos() if sign > 0 else torch.full((3,), 3.0))


def _scan(x: Tensor) -> Any:
    return scan(lambda carry, row: ((carry * row).sin(), carry + row), x[0], x)


@pytest.mark.parametrize(
    "program", [_scan, lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))], ids=["scan", "cond"]
)
def test_refused_by_themselves(program: Callable[[Tensor], Any]) -> None:
    with pytest.raises(UnsupportedHigherOrderOperator, match=r"operator (scan|cond) is not"):
        dovetail.compile(program)(leaf(3, 3))


def test_a_branch_that_writes_what_it_is_given_is_refused() -> None:
    def write(x: Tensor) -> Tensor:
        x.add_(1)
        return x * 2

    compiled = torch.compile(
        lambda x: torch.cond(x.sum() > 0, write, lambda x: x * 1, (x,)), backend="dovetail", fullgraph=True
    )
    with torch.no_grad(), pytest.raises(Exception, match="UnsupportedHigherOrderOperator"):
        compiled(torch.ones(3))
