"""Gradients of results from which other results of the call were computed: `Tensor.retain_grad` keeps eager mode's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import dovetail
from dovetail.errors import DoubleBackwardUnsupported, GradientOfResult

WEIGHTS = [torch.randn(4, 4, generator=torch.Generator().manual_seed(k)).requires_grad_() for k in range(3)]
Function = Callable[[Tensor], Sequence[Tensor]]


def chain(x: Tensor) -> Sequence[Tensor]:
    first = torch.tanh(x @ WEIGHTS[0])
    second = first + torch.tanh(first @ WEIGHTS[1])
    third = second + torch.sin(second @ WEIGHTS[2])
    return first, second, third, (third * third).sum()


def transposed(x: Tensor) -> Sequence[Tensor]:
    hidden = torch.tanh(x @ WEIGHTS[0]).t()
    return hidden, (hidden @ torch.ones(3)).sum()


def side_by_side(x: Tensor) -> Sequence[Tensor]:
    q, k = x @ WEIGHTS[0], x @ WEIGHTS[1]
    return q, k, (q @ k.t()).softmax(-1).square().sum(), q.exp().sum()


def detached(x: Tensor) -> Sequence[Tensor]:
    hidden = x @ WEIGHTS[0]
    return hidden, hidden.detach().square().sum() + x.sum()


def checkpointed(x: Tensor) -> Sequence[Tensor]:
    hidden = checkpoint(lambda x: torch.tanh(x @ WEIGHTS[0]), x, use_reentrant=False)
    return hidden, (hidden @ WEIGHTS[1]).square().sum()


def loss(results: Sequence[Tensor]) -> None:
    results[-1].backward()


def loss_of_all(results: Sequence[Tensor]) -> None:
    sum((result.square().sum() for result in results), torch.zeros(())).backward()


def twice(results: Sequence[Tensor]) -> None:
    results[-1].backward(retain_graph=True)
    results[-1].backward()


def first_alone(results: Sequence[Tensor]) -> None:
    results[0].sum().backward()


def held_before(results: Sequence[Tensor]) -> None:
    for result in results:
        result.grad = torch.ones_like(result)
    results[-1].backward()


def inputs_alone(results: Sequence[Tensor]) -> None:
    results[-1].backward(inputs=[results[0]])


def gradients(function: Function, backward: Callable[[Sequence[Tensor]], None], kept: slice) -> list[Tensor | None]:
    """What results, the input and the weights hold after each of two calls."""
    found: list[Tensor | None] = []
    for _ in range(2):
        for weight in WEIGHTS:
            weight.grad = None
        x = torch.linspace(-1, 1, 12).reshape(3, 4).requires_grad_()
        results = function(x)
        for result in results[kept]:
            result.retain_grad()
        backward(results)
        found += [*(result.grad for result in results[kept]), x.grad, *(weight.grad for weight in WEIGHTS)]
    return found


def same(found: list[Tensor | None], wanted: list[Tensor | None]) -> bool:
    return len(found) == len(wanted) and all(
        a is b if a is None or b is None else torch.equal(a, b) and a.stride() == b.stride()
        for a, b in zip(found, wanted, strict=True)
    )


@pytest.mark.parametrize("backward", [loss, loss_of_all, twice, first_alone, held_before, inputs_alone])
@pytest.mark.parametrize("function", [chain, transposed, side_by_side, detached, checkpointed])
def test_results_keep_their_gradients(function: Function, backward: Callable[[Sequence[Tensor]], None]) -> None:
    wanted = gradients(function, backward, slice(None))
    found = gradients(dovetail.compile(function), backward, slice(None))
    assert same(found, wanted)


@pytest.mark.parametrize(
    "compiled", [lambda f: torch.compile(f, backend="dovetail"), lambda f: dovetail.compile(f, memory_limit="1MiB")]
)
def test_through_other_doors(compiled: Callable[[Function], Function]) -> None:
    torch._dynamo.reset()
    wanted = gradients(chain, loss_of_all, slice(0, 2))
    assert same(gradients(compiled(chain), loss_of_all, slice(0, 2)), wanted)


def test_results_that_are_gone_keep_nothing() -> None:
    def only_loss(results: Sequence[Tensor]) -> None:
        results[-1].backward()

    def without_first(x: Tensor) -> Sequence[Tensor]:
        results = list(compiled(x))
        results[0].retain_grad()
        del results[0]
        return results

    compiled = dovetail.compile(chain)
    wanted = gradients(lambda x: chain(x)[1:], only_loss, slice(0, 2))
    assert same(gradients(without_first, only_loss, slice(0, 2)), wanted)


def _hidden_and_loss() -> tuple[Any, Tensor]:
    hidden, *_, loss = dovetail.compile(chain)(torch.ones(3, 4))
    return hidden, loss


def test_hooks_are_refused() -> None:
    hidden, loss = _hidden_and_loss()
    hidden.register_hook(lambda gradient: None)
    with pytest.raises(GradientOfResult, match="DT-AUTOGRAD-005") as caught:
        loss.backward()
    assert "retain_grad()" in str(caught.value)


def test_hooks_on_other_results_run() -> None:
    seen = list[Tensor]()
    _, loss = _hidden_and_loss()
    loss.register_hook(seen.append)
    loss.backward()
    assert torch.equal(seen[0], torch.ones(()))


def test_gradients_of_two_losses_are_told_apart() -> None:
    hidden, loss = _hidden_and_loss()
    hidden.retain_grad()
    (loss + hidden.sum()).backward(retain_graph=True)
    with pytest.raises(GradientOfResult, match="another backward"):
        (loss + hidden.sum()).backward(retain_graph=True)
    hidden.grad = None
    (loss + hidden.sum()).backward()


def test_second_derivatives_are_refused() -> None:
    x = torch.ones(3, 4, requires_grad=True)
    hidden, *_, loss = dovetail.compile(chain, double_backward=True)(x)
    hidden.retain_grad()
    with pytest.raises(GradientOfResult, match="create_graph"):
        torch.autograd.grad(loss, x, create_graph=True)
    hidden, *_, loss = dovetail.compile(chain)(x)
    with pytest.raises(DoubleBackwardUnsupported):
        torch.autograd.grad(loss, x, create_graph=True)


def test_reentrant_checkpoints_are_refused() -> None:
    def function(x: Tensor) -> Sequence[Tensor]:
        hidden = checkpoint(torch.tanh, x @ WEIGHTS[0], use_reentrant=True)
        return hidden, (hidden @ WEIGHTS[1]).square().sum()

    hidden, loss = dovetail.compile(function)(torch.ones(3, 4, requires_grad=True))
    hidden.retain_grad()
    with pytest.raises(GradientOfResult, match="reentrant"):
        loss.backward()
