"""`torch.autograd.graph.register_multi_grad_hook`, before a step and inside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import register_multi_grad_hook

import dovetail

Step = Callable[[Tensor], Tensor]
Setting = tuple[Step, nn.Module, list[Any], Callable[[], None]]


def _nothing() -> None: ...


def _setting(kind: str, mode: Any = "all") -> Setting:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    seen: list[Any] = []
    calls = [0]

    def hook(given: Any) -> None:
        calls[0] += 1
        gradients = [given] if isinstance(given, Tensor) else [x for x in given if x is not None]
        if kind == "numbers":
            seen.append(torch.stack([x.norm() for x in gradients]).norm().item())
        elif kind == "scaled":
            for gradient in gradients:
                gradient.mul_(1 / calls[0])
        else:
            seen.append(len(gradients))

    parameters = list(net.parameters())
    if kind == "frozen":
        parameters.pop(0).requires_grad_(False)

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        handle = _halving(parameters) if kind == "inside" else None
        loss = (net[1] if kind == "part" else net)(x).square().mean()
        loss.backward()
        if kind == "twice":
            net(x).mean().backward()
        optimizer.step()
        if handle is not None:
            handle.remove()
        return loss.detach()

    handle = None if kind == "inside" else register_multi_grad_hook(parameters, hook, mode=mode)
    return step, net, seen, _nothing if handle is None else handle.remove


def _halving(parameters: Sequence[Tensor]) -> Any:
    return register_multi_grad_hook(parameters, lambda found: [x.mul_(0.5) for x in found if x is not None])


def _run(setting: Setting, compiled: bool) -> list[Any]:
    step, net, seen, remove = setting
    called = dovetail.compile_step(step, keep_grads=True) if compiled else step
    generator = torch.Generator().manual_seed(7)
    found: list[Any] = []
    for number in range(6):
        if number == 4:
            remove()
        found.append(called(torch.randn(3, 4, generator=generator)).tolist())
        found += [(p.tolist(), None if p.grad is None else p.grad.tolist()) for p in net.parameters()]
        found.append([(type(x), x) for x in seen])
    return found


@pytest.mark.parametrize("kind", ["counted", "numbers", "scaled", "frozen", "part", "twice", "inside"])
def test_hook_of_all_gradients(kind: str) -> None:
    expected = _run(_setting(kind), compiled=False)
    assert _run(_setting(kind), compiled=True) == expected


def test_hook_of_any_gradient() -> None:
    expected = _run(_setting("counted", "any"), compiled=False)
    assert _run(_setting("counted", "any"), compiled=True) == expected
