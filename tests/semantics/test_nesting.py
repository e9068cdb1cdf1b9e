"""Compiled code that runs inside code which `torch.compile` works on: Dynamo leaves it alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import dovetail

pytestmark = pytest.mark.usefixtures("alone")


def _graphs() -> int:
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


def test_a_compiled_function_inside_of_torch_compile() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(3, 3)
    inner = dovetail.compile(layer)

    def around(inner: nn.Module, x: Tensor) -> Tensor:
        return inner(x * 2).sin()

    x = torch.randn(2, 3, requires_grad=True)
    wanted = [x, *layer.parameters()]
    torch._dynamo.utils.counters.clear()
    result = torch.compile(lambda x: around(inner, x), backend="eager")(x)
    expected = around(layer, x)
    assert torch.equal(result, expected)
    mine, theirs = torch.autograd.grad(result.sum(), wanted), torch.autograd.grad(expected.sum(), wanted)
    assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))
    assert _graphs() == 2  # what is before the call, and what is after it


def test_a_backward_inside_of_torch_compile() -> None:
    def f(x: Tensor) -> Tensor:
        y = (x**3).sin()
        torch._dynamo.graph_break()
        (gradient,) = torch.autograd.grad(y.sum(), x)
        return x * gradient

    x = torch.randn(3, requires_grad=True)
    torch._dynamo.utils.counters.clear()
    assert torch.equal(torch.compile(f, backend="dovetail")(x), f(x))
    assert _graphs() == 3  # up to each of the two breaks, and after them
