"""Code that calls backward itself is refused, and leaves nothing behind."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import dovetail
from dovetail.errors import BackwardInside

MODEL = torch.nn.Linear(3, 2)
HELD = [torch.ones(3, requires_grad=True)]


def by_method(x: Tensor) -> Tensor:
    loss: Tensor = MODEL(x).sum()
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.detach()


def by_function(x: Tensor) -> Tensor:
    loss = (HELD[0] * x).sum()
    torch.autograd.backward([loss])
    return loss.detach()


def of_an_argument(x: Tensor) -> Tensor:
    y = x.sin().sum()
    y.backward()  # type: ignore[no-untyped-call]
    return y.detach()


@pytest.mark.parametrize("function", [by_method, by_function, of_an_argument])
def test_it_is_refused_and_no_gradient_is_left(function: Callable[[Tensor], Tensor]) -> None:
    x = torch.ones(4, 3, requires_grad=True)
    with pytest.raises(BackwardInside, match=rf"from .*{__name__.rpartition('.')[2]}.py:\d+ in {function.__name__}"):
        dovetail.compile(function)(x)
    assert [leaf.grad for leaf in (x, *HELD, *MODEL.parameters())] == [None] * 4
    function(x)
    assert any(leaf.grad is not None for leaf in (x, *HELD, *MODEL.parameters()))
    for leaf in (x, *HELD, *MODEL.parameters()):
        leaf.grad = None


def test_gradients_as_results_are_recorded() -> None:
    def gradient(x: Tensor) -> Tensor:
        (found,) = torch.autograd.grad(x.sin().sum(), x)
        return found

    x = torch.randn(3, requires_grad=True)
    assert torch.equal(dovetail.compile(gradient)(x), gradient(x))


def test_other_threads_may_train_meanwhile() -> None:
    recorded, trained = threading.Event(), threading.Event()

    def wait(x: Tensor) -> Tensor:
        recorded.set()
        assert trained.wait(30)
        return x * 2

    weight = torch.ones(2, requires_grad=True)

    def train() -> None:
        assert recorded.wait(30)
        weight.sum().backward()  # type: ignore[no-untyped-call]
        trained.set()

    other = threading.Thread(target=train)
    other.start()
    dovetail.compile(wait)(torch.ones(2))
    other.join()
    assert weight.grad is not None


def test_torch_compile_takes_it_in_parts() -> None:
    compiled = torch.compile(by_method, backend="dovetail")
    compiled(torch.ones(4, 3))
    assert torch.equal(MODEL.weight.grad, torch.full((2, 3), 4.0))  # type: ignore[arg-type]
    MODEL.zero_grad()
