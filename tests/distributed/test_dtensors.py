"""`DTensor` as state of a step: weights, gradients and moments of optimizers that are spread over processes."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import dovetail
from dovetail.errors import UnsupportedTensor
from tests.distributed.ranks import Ranks
from tests.distributed.steps import Trained, compare, optimizer_of


class _Net(nn.Module):
    """Its weights are spread in several ways; its arithmetic is that of `DTensor`."""

    def __init__(self, mesh: Any) -> None:
        super().__init__()
        self.mesh = mesh
        for name, shape, placement in (("a", (5, 6), Shard(0)), ("b", (5,), Replicate()), ("c", (3, 4), Shard(1))):
            weight = torch.randn(shape, generator=torch.Generator().manual_seed(ord(name)))
            setattr(self, name, nn.Parameter(distribute_tensor(weight, mesh, [placement])))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch: Any = DTensor.from_local(x, self.mesh, [Shard(0)])
        out = (batch @ self.a.T + self.b).tanh().square().mean() + self.c.square().sum() * 0.1
        whole: torch.Tensor = out.full_tensor()
        return whole


class _Loss(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = self.net(x).square().mean()
        return loss


def _stepping(model: nn.Module, optimizer: torch.optim.Optimizer, clips: bool, clears: bool) -> Trained:
    def step(x: torch.Tensor) -> torch.Tensor:
        if clears:
            optimizer.zero_grad()
        loss = model(x)
        loss.backward()
        if clips:
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        detached: torch.Tensor = loss.detach()
        return detached

    return Trained(step, model, optimizer)


def _agrees(rank: int, optimizer: str, clips: bool, clears: bool) -> int:
    warnings.simplefilter("ignore")
    mesh = init_device_mesh("cpu", (2,))

    def make() -> Trained:
        model = _Net(mesh)
        return _stepping(model, optimizer_of(optimizer, model), clips, clears)

    generator = torch.Generator().manual_seed(rank)
    batches = [(torch.randn(2, 6, generator=generator),) for _ in range(4)]
    return compare(make, batches, seed=rank).eager_calls


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_weights_are_spread(two_ranks: Ranks, optimizer: str) -> None:
    """The gradients of calls before are added to in one case, and dropped in the other."""
    assert two_ranks(_agrees, optimizer, optimizer == "adamw", optimizer == "adamw") == [1, 1]  # state is made once


def _in_parallel(rank: int) -> int:
    warnings.simplefilter("ignore")
    mesh = init_device_mesh("cpu", (2,))

    def make() -> Trained:
        torch.manual_seed(3)
        net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
        model: nn.Module = parallelize_module(net, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
        return _stepping(_Loss(model), optimizer_of("adamw", model), True, True)

    batches = [(torch.randn(2, 6, generator=torch.Generator().manual_seed(n)),) for n in range(4)]
    return compare(make, batches, seed=0).eager_calls


def test_layers_are_spread(two_ranks: Ranks) -> None:
    """Tensor parallel plans of torch's: what their hooks do is recorded."""
    assert two_ranks(_in_parallel) == [1, 1]


def _norms(rank: int) -> int:
    """A number that another call changes is a factor, and the order of a norm, which is part of how that is spread."""
    warnings.simplefilter("ignore")
    mesh = init_device_mesh("cpu", (2,))

    def make() -> Trained:
        model = _Net(mesh)
        optimizer = optimizer_of("sgd", model)

        def step(order: float) -> torch.Tensor:
            optimizer.zero_grad()
            norm: Any = torch.linalg.vector_norm(model.a * order, order)
            loss: torch.Tensor = norm.full_tensor() + model.a.mul(order).sum().full_tensor()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return Trained(step, model, optimizer)

    return compare(make, [(1.5,), (1.75,), (2.25,)], seed=rank).captures


def test_numbers_that_tell_how_a_tensor_is_spread_are_guarded(two_ranks: Ranks) -> None:
    assert min(two_ranks(_norms)) >= 2


def _refused(rank: int) -> list[str]:
    mesh = init_device_mesh("cpu", (2,))
    weight = distribute_tensor(torch.ones(2, 2), mesh, [Shard(0)])
    found = []
    for step, argument in ((lambda x: weight * x, 2.0), (lambda x: x.to_local().sum(), weight)):
        compiled = dovetail.compile_step(step)
        text = ""
        for _ in range(2):
            try:
                compiled(argument)
            except UnsupportedTensor as error:
                text = str(error)
        found.append(text)
    return found


def test_what_is_spread_is_no_argument_and_no_result(two_ranks: Ranks) -> None:
    for result, argument in two_ranks(_refused):
        assert "a DTensor, which wraps other tensors" in result
        assert "full_tensor()" in result
        assert "a DTensor among the arguments" in argument
