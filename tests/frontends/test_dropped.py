"""What a compiled object holds is freed with the last reference to it, without the garbage collector."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import dovetail

Use = Callable[[nn.Module], Callable[[torch.Tensor], Any]]


def _step(net: nn.Module, kind: Any = torch.optim.SGD) -> Callable[[torch.Tensor], torch.Tensor]:
    optimizer = kind(net.parameters(), lr=0.1)

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = net(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return dovetail.compile_step(step)


def _search(net: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=3)

    def step(x: torch.Tensor) -> torch.Tensor:
        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss: torch.Tensor = net(x).square().mean()
            loss.backward()
            return loss

        return optimizer.step(closure).detach()  # type: ignore[no-any-return]

    return dovetail.compile_step(step)


def _asking_step(net: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    """What the first recording of its closure refuses, a call in eager mode answers."""

    def step(x: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = net(x).square().mean() * (int(x.sum() > 100) + 1)
        loss.backward()
        return loss.detach()

    return dovetail.compile_step(step, memory_limit="1GiB")


def _trained(call: Callable[..., Any]) -> Callable[[torch.Tensor], Any]:
    return lambda x: call(x).square().mean().backward()


def _frozen(net: nn.Module) -> Callable[[torch.Tensor], Any]:
    frozen = dovetail.freeze(net.eval(), (torch.randn(4, 3),))
    return torch.no_grad()(frozen)


USES: dict[str, Use] = {
    "compile": lambda net: _trained(dovetail.compile(net)),
    "backend": lambda net: _trained(torch.compile(net, backend="dovetail")),
    "step": _step,
    "step that searches": _search,
    "step that asks": _asking_step,
    "step with numbers": lambda net: _step(net, torch.optim.Adam),
    "freeze": _frozen,
}


@pytest.mark.usefixtures("alone")
@pytest.mark.filterwarnings("ignore::dovetail.DovetailWarning")
@pytest.mark.parametrize("use", USES)
def test_weights_go_with_the_last_reference(use: str) -> None:
    def run() -> weakref.ref[Any]:
        net = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
        call = USES[use](net)
        for _ in range(3):
            call(torch.randn(4, 3))
        return weakref.ref(net[0].weight)

    run()  # what torch imports when it is first needed leaves cycles
    torch.compiler.reset()
    gc.collect()
    gc.disable()
    try:
        assert run()() is None
    finally:
        gc.enable()
        torch.compiler.reset()
