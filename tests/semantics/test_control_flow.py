"""Operators over subgraphs: captured, gradients included, or refused by name. Loops with gradients: `test_loops`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._higher_order_ops.map import map as map_over
from torch._higher_order_ops.while_loop import while_loop

import dovetail
from dovetail.errors import UnsupportedHigherOrderOperator
from tests.doors import Door
from tests.rotation import rotated
from tests.semantics.check import Case, Make, assert_like_eager, cases_of, leaf
from tests.torch_release import BEFORE_2_13

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


@cases_of(globals(), of=3)
def test_like_eager(make: Make, door: Door) -> None:
    assert_like_eager(make, door)


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


def test_a_python_number_that_a_branch_reads() -> None:
    scale = [2.0]

    def f(x: Tensor) -> Any:
        return torch.cond(x.sum() > 0, lambda x: x * scale[0], lambda x: x + scale[0], (x,))

    compiled = dovetail.compile(f)
    for scale[0] in (2.0, 3.0, 2.0):
        assert torch.equal(compiled(torch.ones(3)), torch.full((3,), scale[0]))
    assert len(compiled.graphs) == 2


SIZED: list[Callable[[Tensor], Any]] = [
    lambda x: torch.cond(x.sum() > 0, lambda x: x * x.shape[0], lambda x: x + x.shape[0], (x,)),
    lambda x: torch.cond(x.sum() > 0, lambda x: x * 2 if x.shape[0] > 4 else x * 3, lambda x: x + 1, (x,)),
    lambda x: torch.cond(x.sum() > 0, lambda y: y * (2 if x.shape[0] > 4 else 3), lambda y: y + x.shape[0], (x,)),
    lambda x: map_over(lambda row: row.view(3, -1) * row.shape[0] + 1, x),
    lambda x: torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x * 1, (x[1:],)),
]


@pytest.mark.parametrize("function", rotated(SIZED, 3))
def test_what_sub_programs_take_for_granted_of_sizes(function: Callable[[Tensor], Any]) -> None:
    compiled = dovetail.compile(function, dynamic=True)
    for size in (3, 5, 4, 7, 2, 6):
        x, like = (torch.linspace(-1, 2, size * 3).view(size, 3).requires_grad_() for _ in range(2))
        mine, theirs = compiled(x), function(like)
        assert torch.equal(mine, theirs)
        assert torch.equal(*(torch.autograd.grad(r.square().sum(), i)[0] for r, i in ((mine, x), (theirs, like))))


@pytest.mark.skipif(BEFORE_2_13, reason="before torch 2.13 Dynamo takes no argument of a size that depends on data")
def test_a_size_that_depends_on_data_as_an_operand() -> None:
    def f(x: Tensor) -> Any:
        return torch.cond(x.sum() > 0, lambda y: y * 2, lambda y: y * 3, (x[x > 0],))

    compiled = dovetail.compile(f)
    for x in (torch.ones(3), torch.tensor([1.0, -5, 2]), torch.tensor([-1.0, 2, 3])):
        assert torch.equal(compiled(x), f(x))


def _write(x: Tensor) -> Tensor:
    x.add_(1)
    return x * 2


@pytest.mark.parametrize("through", ["Dynamo", "dovetail.compile"])
@pytest.mark.parametrize(
    "program",
    [
        lambda x: torch.cond(x.sum() > 0, _write, lambda x: x * 1, (x,)),
        lambda x: while_loop(lambda i, _: i < 3, lambda i, x: (i + 1, _write(x)), (torch.tensor(0), x)),
    ],
    ids=["cond", "while_loop"],
)
def test_a_sub_program_that_writes_what_it_is_given_is_refused(program: Callable[[Tensor], Any], through: str) -> None:
    compiled = (
        dovetail.compile(program) if through != "Dynamo" else torch.compile(program, backend="dovetail", fullgraph=True)
    )
    x = torch.ones(3)
    message = r"UnsupportedHigherOrderOperator.*(cond|while_loop)"
    if BEFORE_2_13 and through == "Dynamo":
        message += "|Encountered input mutation"  # Dynamo refuses it, and no backend is asked
    with torch.no_grad(), pytest.raises(Exception, match=message):
        compiled(x)
    assert torch.equal(x, torch.ones(3))


def test_the_users_line_is_named() -> None:
    def program(x: Tensor) -> Any:
        return torch.cond(x.sum() > 0, _write, lambda x: x * 1, (x,))

    with torch.no_grad(), pytest.raises(UnsupportedHigherOrderOperator, match=rf"{__file__}:\d+ in program"):
        dovetail.compile(program)(torch.ones(3))


def test_a_branch_that_eager_does_not_take_either() -> None:
    def program(x: Tensor) -> Any:
        return torch.cond(x.sum() > 0, lambda x: x.sum(), lambda x: x * 1, (x,))

    with pytest.raises(Exception, match="cond") as raised:
        program(torch.ones(3))
    with pytest.raises(raised.type, match="cond"):
        dovetail.compile(program)(torch.ones(3))
