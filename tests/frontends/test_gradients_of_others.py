"""Functions that read or set the `.grad` of tensors that they did not make: noticed, or refused by name."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

import dovetail
from dovetail.errors import GradientAccess

HELD = torch.ones(2, requires_grad=True)


@pytest.fixture(autouse=True)
def _no_gradient() -> None:
    HELD.grad = None


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x if HELD.grad is None else x + HELD.grad,
        lambda x: x + (getattr(HELD, "grad") if getattr(HELD, "grad", None) is not None else 0),  # noqa: B009
        lambda x: x * sum(p.grad.sum() for p in [HELD] if p.grad is not None),
    ],
)
def test_gradients_of_closed_over_tensors(function: Callable[[Tensor], Tensor]) -> None:
    compiled, x = dovetail.compile(function), torch.ones(2)
    for gradient in (None, torch.ones(2), torch.ones(2), torch.full((2,), 7.0), None, torch.zeros(2)):
        HELD.grad = gradient
        assert torch.equal(torch.as_tensor(compiled(x)), torch.as_tensor(function(x)))


def test_gradients_of_parameters_that_libraries_read() -> None:
    model, x = nn.Linear(2, 2), torch.ones(1, 2)
    compiled = dovetail.compile(lambda x: x * clip_grad_norm_(model.parameters(), 0.1))
    assert torch.equal(compiled(x), torch.zeros(1, 2))
    model(x).sum().backward()
    before = [parameter.grad for parameter in model.parameters()]
    with pytest.raises(GradientAccess, match=r"reads the gradient \(`.grad`\) of model_weight"):
        compiled(x)
    assert all(parameter.grad is held for parameter, held in zip(model.parameters(), before, strict=True))
    model.zero_grad()
    assert torch.equal(compiled(x), torch.zeros(1, 2))
    assert compiled.stats.captures == 1


def test_gradients_of_arguments() -> None:
    compiled = dovetail.compile(lambda x, p: x if p.grad is None else x * 2)
    x, p = torch.ones(2), torch.ones(2, requires_grad=True)
    assert torch.equal(compiled(x, p), x)
    p.sum().backward()
    with pytest.raises(GradientAccess, match=r"reads the gradient \(`.grad`\) of arg_1"):
        compiled(x, p)


def test_gradients_that_nothing_reads_do_not_matter() -> None:
    model, x = nn.Linear(2, 2), torch.ones(1, 2)
    compiled = dovetail.compile(model)
    for _ in range(3):
        compiled(x).sum().backward()
    assert compiled.stats.captures == 1


def _set(tensor: Tensor, x: Tensor) -> None:
    tensor.grad = x * 2


def _put(tensor: Tensor, x: Tensor) -> None:
    setattr(tensor, "grad", torch.ones_like(tensor))  # noqa: B010


@pytest.mark.parametrize("change", [_set, _put])
def test_gradients_that_are_set(change: Callable[[Tensor, Tensor], None]) -> None:
    parameter, x = nn.Parameter(torch.ones(2)), torch.ones(2)
    model = nn.Module()
    model.weight = parameter

    def of_held(x: Tensor) -> Tensor:
        change(HELD, x)
        return x

    def of_model(x: Tensor) -> Tensor:
        change(model.weight, x)
        return x

    def of_argument(x: Tensor, p: Tensor) -> Tensor:
        change(p, x)
        return x

    for call in (
        lambda: dovetail.compile(of_held)(x),
        lambda: dovetail.compile(of_model)(x),
        lambda: dovetail.compile(of_argument)(x, parameter),
    ):
        with pytest.raises(GradientAccess, match=r"sets the gradient \(`.grad`\)"):
            call()
        assert HELD.grad is None
        assert parameter.grad is None


def test_gradients_of_tensors_that_the_function_makes() -> None:
    def function(x: Tensor) -> Tensor:
        own = x.detach().requires_grad_()
        own.grad = x * 2
        return own.grad + 1

    x = torch.ones(2)
    assert torch.equal(dovetail.compile(function)(x), function(x))


def test_a_result_that_retains_its_gradient() -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        doubled = x * 2
        doubled.retain_grad()
        return doubled, doubled.sum()

    with pytest.raises(GradientAccess, match=r"(?s)retains the gradient.*call retain_grad\(\) on what the function"):
        dovetail.compile(program)(torch.ones(2, requires_grad=True))
