"""Modules: parametrized, tied, frozen and cached weights, state that moves, and what autograd leaves out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn.utils import parametrizations, parametrize

from tests.doors import Door
from tests.semantics.check import Case, Make, assert_like_eager, cases_of, leaf

pytestmark = pytest.mark.usefixtures("alone")


def case_weight_norm() -> Case:
    return Case(nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 5)), nn.ReLU()), (leaf(3, 4),))


def case_spectral_norm() -> Case:
    return Case(parametrizations.spectral_norm(nn.Linear(4, 5)), (leaf(3, 4),))


def case_orthogonal() -> Case:
    return Case(parametrizations.orthogonal(nn.Linear(4, 4)), (leaf(3, 4),))


def case_orthogonal_by_householder() -> Case:
    return Case(parametrizations.orthogonal(nn.Linear(4, 4), orthogonal_map="householder"), (leaf(3, 4),))


def case_cached_parametrization() -> Case:
    layer = parametrizations.weight_norm(nn.Linear(4, 4))

    def f(x: Tensor) -> Tensor:
        with parametrize.cached():
            return layer(layer(x))

    return Case(f, (leaf(3, 4),), module=layer)


class _Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.embedding(tokens))


def case_tied_weights() -> Case:
    return Case(_Tied(), (torch.arange(5),))


class _Adapted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(4, 4).requires_grad_(False)
        self.down = nn.Linear(4, 2, bias=False)
        self.up = nn.Linear(2, 4, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


def case_frozen_base_and_adapter() -> Case:
    return Case(_Adapted(), (torch.randn(2, 4),))


def case_frozen_statistics() -> Case:
    net = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.BatchNorm2d(3, track_running_stats=False))
    net[1].eval().requires_grad_(False)
    return Case(net, (leaf(2, 2, 5, 5),))


class _Counting(nn.Module):
    count: Tensor
    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        y = self.layer(x)
        self.mean.mul_(0.9).add_(y.detach().mean(0), alpha=0.1)
        return (y - self.mean) * self.count


def case_moving_state() -> Case:
    return Case(_Counting(), (leaf(2, 3),))


def case_norms() -> Case:
    return Case(
        nn.Sequential(nn.LayerNorm(4), nn.RMSNorm(4), nn.GroupNorm(2, 4), nn.InstanceNorm2d(4, affine=True)),
        (leaf(2, 4, 4, 4),),
    )


def case_transformer() -> Case:
    return Case(nn.Transformer(8, 2, 1, 1, 16, batch_first=True), (leaf(2, 5, 8), leaf(2, 4, 8)))


def case_recurrent_cells() -> Case:
    cell = nn.GRUCell(3, 4)

    def f(x: Tensor) -> Tensor:
        h = torch.zeros(2, 4)
        for t in range(4):
            h = cell(x[t], h)
            if t == 1:
                h = h.detach()
        return h

    return Case(f, (leaf(4, 2, 3),), module=cell)


def case_weights_from_elsewhere() -> Case:
    net = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))

    def f(x: Tensor, scale: Tensor) -> Any:
        return functional_call(net, {"0.weight": net[0].weight * scale}, (x,))

    return Case(f, (leaf(4, 3), leaf()), module=net)


def case_an_ensemble_over_a_module_without_memory() -> Case:
    parameters, _ = stack_module_state([nn.Linear(3, 2) for _ in range(3)])
    skeleton = nn.Linear(3, 2, device="meta")

    def one(parameters: dict[str, Tensor], x: Tensor) -> Any:
        return functional_call(skeleton, parameters, (x,))

    return Case(lambda x, parameters: vmap(one, (0, None))(parameters, x), (leaf(4, 3), parameters))


class _Skipping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor, ignored: Tensor) -> Tensor:
        return self.used(x)


def case_parameters_and_arguments_that_nobody_uses() -> Case:
    return Case(_Skipping(), (leaf(2, 3), leaf(2, 3)))


def case_forward_hooks() -> Case:
    net = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    net[0].register_forward_hook(lambda module, args, output: output * 2)
    net[1].register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    return Case(net, (leaf(2, 3),))


def case_backward_hooks() -> Case:
    net = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2))
    net[0].register_full_backward_hook(lambda module, given, arrived: (given[0] * 2,))
    net[2].register_full_backward_pre_hook(lambda module, arrived: (arrived[0] * 3,))
    return Case(net, (leaf(2, 3),))


def case_hooks_on_parameters() -> Case:
    layer = nn.Linear(3, 3)
    layer.weight.register_hook(lambda gradient: gradient * 2)

    def halve(parameter: Tensor) -> None:
        parameter.grad.div_(2)

    layer.bias.register_post_accumulate_grad_hook(halve)
    return Case(layer, (leaf(2, 3),))


@cases_of(globals(), in_pieces=("backward_hooks",), of=3)
def test_like_eager(make: Make, door: Door) -> None:
    assert_like_eager(make, door)
