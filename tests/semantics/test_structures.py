"""Arguments and results in nested structures, and programs that Dynamo takes in pieces."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from transformers.utils import ModelOutput

from tests.doors import Door
from tests.semantics.check import Case, Make, assert_like_eager, cases_of, leaf

pytestmark = pytest.mark.usefixtures("alone")


class Named(NamedTuple):
    """A tensor and more of them."""

    first: Tensor
    rest: dict[str, Any]


@dataclasses.dataclass
class Plain:
    """A dataclass that no pytree knows."""

    first: Tensor
    second: Tensor
    number: int = 3


@dataclasses.dataclass
class Output(ModelOutput):
    """As models of `transformers` return them."""

    loss: Tensor | None = None
    hidden: tuple[Tensor, ...] | None = None


def case_named_tuples_and_keywords() -> Case:
    def f(p: Named, *, k: Tensor, scale: float = 2.0) -> Named:
        return Named(p.first * scale, {"made": [p.rest["q"] * k, None, 3, "text"]})

    return Case(f, (Named(leaf(3), {"q": leaf(3)}),), {"k": leaf(3)})


def case_a_dataclass_as_argument() -> Case:
    return Case(lambda p: p.first * p.second * p.number, (Plain(leaf(3), leaf(3)),))


def case_model_outputs() -> Case:
    def f(given: Output) -> Output:
        assert given.hidden is not None
        return Output(loss=given.loss * given["hidden"][0], hidden=(given.hidden[0].sin(),))

    return Case(f, (Output(loss=leaf(3), hidden=(leaf(3),)),))


def case_dictionaries() -> Case:
    def f(d: dict[str, Tensor]) -> Any:
        found = collections.defaultdict(list)
        found["a"].append(d["a"] * 2)
        return collections.OrderedDict(x=d["b"] * 2, y=dict(found), z=(d["a"].shape, d["b"].dtype))

    return Case(f, ({"b": leaf(3), "a": leaf(3)},))


def case_the_same_tensor_twice() -> Case:
    def f(x: Tensor, again: Tensor) -> Any:
        y = x * again
        return y, [y, (y,)], x.sin()

    x = leaf(3)
    return Case(f, (x, x))


def case_no_arguments_and_no_results() -> Case:
    return Case(lambda: (torch.ones(3) * 2, None, ()))


def case_a_break_and_a_branch() -> Case:
    def f(x: Tensor) -> Tensor:
        y = x.sin()
        torch._dynamo.graph_break()
        return y * 2 if x.shape[0] > 2 else y - 1

    return Case(f, (leaf(3),))


def case_breaks_between_writes() -> Case:
    def f(x: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        b.add_(1)
        y = x * 2
        view = y[1:]
        torch._dynamo.graph_break()
        b.mul_(x.detach())
        view.mul_(3)
        torch._dynamo.graph_break()
        return (y * b).sin(), b

    return Case(f, (leaf(3), torch.ones(3)))


@cases_of(globals(), in_pieces=("a_break_and_a_branch", "breaks_between_writes"))
def test_like_eager(make: Make, door: Door) -> None:
    assert_like_eager(make, door)


def test_a_branch_on_a_number_is_left_to_eager() -> None:
    def f(x: Tensor) -> Tensor:
        y = x.sin()
        return y * 2 if y.sum().item() > 0 else y * 3

    compiled = torch.compile(f, backend="dovetail")
    for x in (torch.ones(3, requires_grad=True), -torch.ones(3, requires_grad=True)):
        assert torch.equal(compiled(x), f(x))
        assert torch.equal(torch.autograd.grad(compiled(x).sum(), x)[0], torch.autograd.grad(f(x).sum(), x)[0])
