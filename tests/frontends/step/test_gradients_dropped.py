"""Gradients that a step drops are gone before new ones are made, also where it asks about a number first."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch import Tensor, nn

import dovetail
from dovetail.execute.step import LastCheck


@pytest.mark.usefixtures("alone")
def test_gradients_go_once_the_last_question_was_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @dovetail.compile_step
    def step(x: Tensor) -> Tensor:
        loss = model(x).square().mean()
        if not torch.isfinite(loss):
            return loss.detach()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    for _ in range(3):
        step(torch.randn(2, 4))
    held = [weakref.ref(parameter.grad) for parameter in model.parameters()]
    alive: list[int] = []
    passed = LastCheck.__call__

    def watched(check: LastCheck, result: object) -> None:
        passed(check, result)
        alive.append(sum(gradient() is not None for gradient in held))

    monkeypatch.setattr(LastCheck, "__call__", watched)
    step(torch.randn(2, 4))
    assert alive == [0]

    before = [parameter.grad for parameter in model.parameters()]
    step(torch.full((2, 4), float("inf")))  # the answer is another one, and nothing is dropped
    assert alive == [0]
    assert all(parameter.grad is gradient for parameter, gradient in zip(model.parameters(), before, strict=True))
