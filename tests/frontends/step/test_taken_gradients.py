"""A weight's first gradient is the tensor that arrives, as in eager mode, strides of dimensions of size 1 included."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dovetail


class _Slope(nn.Module):
    """The loss reads the slope of a network of one number: weights of one column get two gradients, transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, 8), nn.SiLU(), nn.Linear(8, 1))

    def forward(self, t: Tensor) -> Tensor:
        t = t.clone().requires_grad_()
        u = self.net(t)
        (slope,) = torch.autograd.grad(u, t, torch.ones_like(u), create_graph=True)
        return (u + slope).square().mean()


class _Column(nn.Module):
    """A weight of one column that lies in another order than its gradient, and one whose gradient is transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.column = nn.Parameter(torch.randn(1, 6).t().contiguous())
        self.rows = nn.Parameter(torch.randn(5, 6))

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(x[:, :1] @ self.column.t()).mean() + (self.rows.t() * x.mean()).sin().sum()


@pytest.mark.parametrize("kind", [_Slope, _Column])
@pytest.mark.parametrize("clears", [True, False])
def test_gradients_lie_as_in_eager_mode(kind: type[nn.Module], clears: bool) -> None:
    first = kind()
    models = [first, copy.deepcopy(first)]

    def step_of(model: nn.Module) -> Any:
        def step(x: Tensor) -> Tensor:
            if clears:
                model.zero_grad()
            loss: Tensor = model(x)
            loss.backward()
            return loss.detach()

        return step

    steps = [step_of(models[0]), dovetail.compile_step(step_of(models[1]))]
    for call in range(3):
        x = torch.randn(7, 1 if kind is _Slope else 3, generator=torch.Generator().manual_seed(call))
        losses = [step(x) for step in steps]
        assert torch.equal(*losses)
        for eager, here in zip(*(model.parameters() for model in models), strict=True):
            assert eager.grad is not None
            assert here.grad is not None
            assert torch.equal(eager.grad, here.grad), call
            assert eager.grad.stride() == here.grad.stride(), call
