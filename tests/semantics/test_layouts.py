"""Strides and sizes at the edge: of arguments, results, gradients, and of the gradients that arrive."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tests.doors import DOORS, Door
from tests.semantics.check import Case, Make, assert_like_eager, cases_of, leaf

pytestmark = pytest.mark.usefixtures("alone")


def case_strided_arguments() -> Case:
    x = torch.randn(5, 4).t().requires_grad_()
    y = torch.randn(4, 10)[:, ::2].requires_grad_()
    return Case(lambda x, y: (x * y, x @ y.t(), x.sum(0), (x + 1).relu(), (x * 2).t()), (x, y))


def case_expanded_arguments() -> Case:
    x = torch.randn(1, 4).expand(3, 4).requires_grad_()
    return Case(lambda x: (x * 2, x.sum(), x.exp().expand(2, 3, 4)), (x,))


def case_views_of_other_shape() -> Case:
    return Case(lambda x: (x.flip(0)[::2], (x * 2).unfold(0, 2, 1), x.sin().as_strided((2, 2), (1, 2))), (leaf(6),))


def case_channels_last() -> Case:
    net = nn.Sequential(
        nn.Conv2d(4, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Upsample(scale_factor=2),
        nn.GroupNorm(2, 4),
    ).to(memory_format=torch.channels_last)
    return Case(net, (torch.randn(2, 4, 8, 8).to(memory_format=torch.channels_last).requires_grad_(),))


def case_channels_last_in_three_dimensions() -> Case:
    net = nn.Conv3d(2, 3, 2).to(memory_format=torch.channels_last_3d)
    return Case(net, (torch.randn(1, 2, 4, 4, 4).to(memory_format=torch.channels_last_3d).requires_grad_(),))


def case_a_parameter_with_strides() -> Case:
    layer = nn.Linear(3, 4)
    layer.weight = nn.Parameter(torch.randn(3, 4).t())
    return Case(layer, (leaf(2, 3),))


def case_empty_tensors() -> Case:
    def f(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return x @ y, x.sum(0), torch.cat([x.t(), y], 1), x.mean(), x.exp().view(0, 1, 3), x.sum()

    return Case(f, (leaf(0, 3), leaf(3, 2)))


def case_tensors_without_dimensions() -> Case:
    return Case(lambda x, y: (x * y, x.sin() + 1, y.exp().view(1), (x * 3).expand(3)), (leaf(), leaf()))


def case_results_without_gradients() -> Case:
    return Case(lambda x, y: (x * 2, y.detach() * 3, x > 0, x.argmax(), None, 3), (leaf(3), leaf(3)))


@cases_of(globals())
def test_like_eager(make: Make, door: Door) -> None:
    assert_like_eager(make, door)


TANGENTS: dict[str, Callable[[Tensor], Tensor]] = {
    "expanded": lambda y: torch.ones(()).expand_as(y),
    "transposed": lambda y: torch.randn(y.shape[::-1]).permute(*reversed(range(y.dim()))),
    "channels last": lambda y: torch.randn(y.shape).to(memory_format=torch.channels_last),
    "every other": lambda y: torch.randn(*y.shape[:-1], 2 * y.shape[-1])[..., ::2],
}


@pytest.mark.parametrize("tangent", TANGENTS)
@pytest.mark.parametrize("door", DOORS)
def test_gradients_that_arrive_with_strides(door: Door, tangent: str) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.SiLU())
    compiled = door(net).call
    x = torch.randn(2, 3, 5, 6, requires_grad=True)
    wanted = [x, *net.parameters()]
    for call in range(2):
        arriving = TANGENTS[tangent](net(x).detach() + call)
        theirs = torch.autograd.grad(net(x), wanted, arriving)
        mine = torch.autograd.grad(compiled(x), wanted, arriving)
        for a, b in zip(mine, theirs, strict=True):
            assert torch.equal(a, b)
            assert a.stride() == b.stride()
