"""Tensors that are part of graphs from before a step: it may put others in their places, and read them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import prune, spectral_norm, weight_norm

import dovetail
from dovetail.errors import StateChangedOtherwise, UnsupportedStep
from tests.frontends.step.agreement import programs_of

WAYS: dict[str, Callable[[nn.Linear], nn.Module]] = {
    "weight_norm": weight_norm,
    "spectral_norm": spectral_norm,
    "prune": lambda layer: prune.l1_unstructured(layer, "weight", 0.3),
    "prune the bias as well": lambda layer: prune.random_unstructured(
        prune.l1_unstructured(layer, "weight", 0.3), "bias", 0.4
    ),
}


def agree(make: Callable[[], nn.Module], *, create_graph: bool = False) -> None:
    """Compare a training, eager and compiled, bit by bit, attributes that each call sets included."""
    found = []
    for compiled in (False, True):
        torch.manual_seed(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            net = nn.Sequential(make(), nn.ReLU(), nn.Linear(5, 3))
        optimizer = torch.optim.Adam(net.parameters())

        def step(x: Tensor, y: Tensor) -> Tensor:
            optimizer.zero_grad()  # noqa: B023
            loss = F.cross_entropy(net(x), y)  # noqa: B023
            loss.backward(create_graph=create_graph)
            optimizer.step()  # noqa: B023
            return loss.detach()

        run = dovetail.compile_step(step) if compiled else step
        seen: list[Any] = []
        for _ in range(5):
            seen.append(run(torch.randn(8, 4), torch.randint(0, 3, (8,))).tolist())
            weight = net[0].weight
            seen.append((weight.tolist(), weight.requires_grad, weight.is_leaf, type(weight.grad_fn).__name__))
            seen += [(p.tolist(), p.grad.tolist(), p.grad.requires_grad) for p in net.parameters()]
            seen += [b.tolist() for b in net.buffers()]
        seen.append([x.tolist() for s in optimizer.state.values() for x in s.values()])
        found.append(seen)
        if compiled:
            assert run.stats.eager_calls == 0
            assert (
                programs_of(run.stats) <= 2
            )  # spectral_norm leaves a tensor that requires gradients, in the first call
    for wanted, got in zip(*found, strict=True):
        assert wanted == got


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_weights_that_are_made_anew_in_each_call(way: str) -> None:
    agree(lambda: WAYS[way](nn.Linear(4, 5)))


@pytest.mark.filterwarnings("ignore:Using backward:UserWarning")
def test_gradients_with_graphs_that_are_dropped() -> None:
    agree(lambda: nn.Linear(4, 5), create_graph=True)


class Holder:
    """Keeps a tensor with its graph."""

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight
        self.held = weight * 2


def _used(holder: Holder, x: Tensor) -> Tensor:
    return (holder.held * x).sum()


def _measured(holder: Holder, x: Tensor) -> Tensor:
    return x.sum() * holder.held.shape[0]


def _asked(holder: Holder, x: Tensor) -> Tensor:
    return x.sum() * holder.held.requires_grad


@pytest.mark.parametrize("use", [_used, _measured, _asked])
def test_a_tensor_with_a_graph_is_read_as_in_eager_mode(use: Callable[[Holder, Tensor], Tensor]) -> None:
    holder = Holder(torch.ones(3, requires_grad=True))

    def step(x: Tensor) -> Tensor:
        return use(holder, x).detach()

    run = dovetail.compile_step(step)
    for number in range(3):
        holder.held = holder.weight * number
        x = torch.randn(3)
        assert torch.equal(run(x), step(x))
    assert run.stats.captures == 1


def test_backward_beyond_a_tensor_with_a_graph_is_refused() -> None:
    holder = Holder(torch.ones(3, requires_grad=True))

    def step(x: Tensor) -> None:
        _used(holder, x).backward(retain_graph=True)

    run = dovetail.compile_step(step)
    run(torch.ones(3))
    with pytest.raises(StateChangedOtherwise, match="part of a graph from before"):
        run(torch.ones(3))


@pytest.mark.parametrize("asked", ["is_leaf", "grad_fn", "output_nr"])
def test_graph_of_an_argument_that_code_asks_for_is_refused(asked: str) -> None:
    run = dovetail.compile_step(lambda x: x * (2 if getattr(x, asked) else 3))
    leaf = torch.ones(3, requires_grad=True)
    run(leaf)
    assert torch.equal(run(leaf), leaf * (2 if getattr(leaf, asked) else 3))
    with pytest.raises(StateChangedOtherwise, match="argument 0, which is part of a graph from before"):
        run(leaf * 2)


def test_arguments_of_graphs_are_no_reason_to_warn() -> None:
    run = dovetail.compile_step(lambda x: x.sum() * 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for number in range(6):
            leaf = torch.ones(3, requires_grad=True)
            x = leaf * number if number % 2 else leaf
            assert torch.equal(run(x), x.sum() * 2)


def test_gradient_that_is_an_argument_is_refused() -> None:
    net = nn.Linear(3, 2)
    run = dovetail.compile_step(lambda x, gradient: net(x) * gradient.sum())
    net.weight.grad = torch.ones(2, 3)
    run(torch.ones(2, 3), net.weight.grad)
    with pytest.raises(UnsupportedStep, match="argument 1, which is the gradient of net"):
        run(torch.ones(2, 3), net.weight.grad)
    assert torch.equal(run(torch.ones(2, 3), net.weight.grad.clone()), net(torch.ones(2, 3)) * 6)
