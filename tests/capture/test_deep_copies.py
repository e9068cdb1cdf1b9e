"""Copies of tensors and modules in compiled code: as in eager mode, and without copies of what fakes hold."""

from __future__ import annotations

import copy
import gc
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode

import dovetail


class _Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.second.weight = self.first.weight
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.second(self.first(x)))  # type: ignore[no-any-return]


def _snapshots(wrap: Any) -> tuple[list[list[Tensor]], list[Tensor]]:
    torch.manual_seed(0)
    net = _Tied()
    optimizer = torch.optim.AdamW(net.parameters())
    x = torch.randn(4, 3)

    def step(x: Tensor) -> tuple[Tensor, list[Tensor]]:
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        before = copy.deepcopy(net.state_dict())
        optimizer.step()
        before["first.weight"].mul_(2)
        return loss.detach(), list(before.values())

    called = wrap(step)
    found = [called(x) for _ in range(3)]
    return [[loss, *kept] for loss, kept in found], [*net.state_dict().values()]


def test_states_that_a_step_copies() -> None:
    expected, ours = _snapshots(lambda step: step), _snapshots(dovetail.compile_step)
    for a, b in zip([*expected[0], expected[1]], [*ours[0], ours[1]], strict=True):
        assert all(map(torch.equal, a, b))


def test_a_module_that_a_function_copies() -> None:
    net = _Tied().eval()

    def f(x: Tensor) -> Tensor:
        other = copy.deepcopy(net)
        with torch.no_grad():
            other.first.weight.add_(1)
        return other(x) + net(x)  # type: ignore[no-any-return]

    x = torch.randn(4, 3)
    assert torch.equal(dovetail.compile(f)(x), f(x))


def test_a_part_of_a_tensor_with_its_strides() -> None:
    def f(x: Tensor) -> Tensor:
        return copy.deepcopy(x.detach()[:, ::2])

    x = torch.randn(4, 6)
    found = dovetail.compile(f)(x)
    assert torch.equal(found, f(x))
    assert found.stride() == f(x).stride()


def test_a_shallow_copy_lies_in_the_same_memory() -> None:
    weight = nn.Parameter(torch.ones(3))

    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        alias, made = copy.copy(x), copy.copy(weight)
        with torch.no_grad():
            alias.add_(1)
        (grad,) = torch.autograd.grad((made * x).sum(), made)
        return x * 2, grad

    expected, ours = f(torch.ones(3)), dovetail.compile(f)(torch.ones(3))
    assert all(map(torch.equal, ours, expected))


def test_modes_of_fakes_are_not_copied() -> None:
    """Copies of them ended the process later on."""
    modes = []

    def f(x: Tensor) -> Tensor:
        made = copy.deepcopy(x.detach())
        return made * 2

    gc.collect()
    before = sum(isinstance(x, FakeTensorMode) for x in gc.get_objects())
    compiled = dovetail.compile(f)
    compiled(torch.ones(3))
    modes = [x for x in gc.get_objects() if isinstance(x, FakeTensorMode)]
    assert len(modes) - before <= 2  # that of the recording, and one that shows what every fake has


def _gradients_of_copies(wrap: Any) -> list[Any]:
    torch.manual_seed(0)
    net, found = nn.Linear(3, 2), list[Any]()
    net.weight.note = "of the user"  # type: ignore[attr-defined]

    def step(x: Tensor) -> tuple[bool, bool, bool, Tensor]:
        net(x).square().sum().backward()
        other, alone = copy.deepcopy(net), copy.deepcopy(net.weight)
        had = other.weight.grad is not None, alone.grad is not None, hasattr(alone, "note")
        other(x).sum().backward()
        assert other.weight.grad is not None, "backward has made it"
        return *had, other.weight.grad.clone()

    called = wrap(step)
    for number in range(3):
        found.append([x.tolist() if isinstance(x, Tensor) else x for x in called(torch.full((4, 3), number + 1.0))])
    return found


def test_a_copied_parameter_has_no_gradient() -> None:
    assert _gradients_of_copies(dovetail.compile_step) == _gradients_of_copies(lambda step: step)
