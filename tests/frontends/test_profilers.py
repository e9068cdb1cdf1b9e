"""Doors open while a profiler of the user's is active: it stays, sees the user's code, and nothing else changes."""

from __future__ import annotations

import cProfile
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dovetail


def _model() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))


def _called(compile_it: Callable[[nn.Module], Any]) -> Callable[[bool], list[Tensor]]:
    def run(is_compiled: bool) -> list[Tensor]:
        model = _model()
        called = compile_it(model) if is_compiled else model
        loss = called(torch.ones(2, 3)).sum()
        loss.backward()
        return [loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]

    return run


def _step(is_compiled: bool) -> list[Tensor]:
    model = _model()
    optimizer = torch.optim.Adam(model.parameters())

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    run = dovetail.compile_step(step) if is_compiled else step
    return [*(run(torch.ones(2, 3)) for _ in range(3)), *(p.detach() for p in model.parameters())]


def _frozen(is_compiled: bool) -> list[Tensor]:
    model = _model().eval()
    called = dovetail.freeze(model, (torch.ones(2, 3),)) if is_compiled else model
    with torch.no_grad():
        return [called(torch.ones(2, 3))]


DOORS: dict[str, Callable[[bool], list[Tensor]]] = {
    "backend": _called(lambda model: torch.compile(model, backend="dovetail")),
    "compile": _called(dovetail.compile),
    "compile_step": _step,
    "freeze": _frozen,
}


@contextmanager
def _profiled_by_c() -> Iterator[Callable[[], bool]]:
    with cProfile.Profile() as profile:
        yield lambda: sys.getprofile() is profile


@contextmanager
def _profiled_by_python() -> Iterator[Callable[[], bool]]:
    seen: list[str] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            seen.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        yield lambda: sys.getprofile() is note and "_model" in seen
    finally:
        sys.setprofile(None)


@pytest.mark.parametrize("profiled", [_profiled_by_c, _profiled_by_python], ids=["cProfile", "setprofile"])
@pytest.mark.parametrize("door", DOORS)
def test_a_profiler_goes_on(door: str, profiled: Callable[[], Any]) -> None:
    torch.compiler.reset()
    expected = DOORS[door](False)
    with profiled() as goes_on:
        found = DOORS[door](True)
        is_as_before = goes_on()
    assert is_as_before
    assert all(map(torch.equal, found, expected))
