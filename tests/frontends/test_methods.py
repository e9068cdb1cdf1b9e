"""Functions and steps that are written as methods."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dovetail


class _Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.factor = 2.0

    @dovetail.compile
    def forward(self, x: Tensor) -> Tensor:
        """Rows to rows."""
        found: Tensor = self.linear(x) * self.factor
        return found


class _Training:
    """Two trainings do the same, whichever of the two ways a step is made."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.net = nn.Linear(3, 2)
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=0.1)
        self.factor = 2.0

    def plain(self, x: Tensor) -> Tensor:
        """One step."""
        self.optimizer.zero_grad()
        loss: Tensor = (self.net(x) * self.factor).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    step = dovetail.compile_step(plain)


def test_a_compiled_forward_belongs_to_its_module() -> None:
    x = torch.randn(4, 3)
    for layer in (_Layer(), _Layer()):
        for factor in (2.0, 2.0, 3.0):
            layer.factor = factor
            assert torch.equal(layer(x), layer.linear(x) * factor)
    compiled: Any = _Layer.forward
    assert isinstance(compiled, dovetail.CompiledFunction)
    assert compiled.stats.captures == 4


def test_a_module_as_a_class_attribute_is_no_method() -> None:
    class Holder:
        net = dovetail.compile(nn.Linear(3, 2))

    x = torch.randn(4, 3)
    assert torch.equal(Holder().net(x), Holder.net(x))


def test_a_step_belongs_to_its_object() -> None:
    x = torch.randn(4, 3)
    for _ in range(2):
        eager, compiled = _Training(), _Training()
        for call in range(5):
            eager.factor = compiled.factor = 2.0 + (call > 2)
            assert torch.equal(compiled.step(x), eager.plain(x))
        assert torch.equal(compiled.net.weight, eager.net.weight)
    assert _Training.step.stats.captures in (2, 3, 4)  # an object may get the address of one that is gone
    assert _Training.step.__doc__ == "One step."


class _Scaled:
    def times(self, x: Tensor, y: float = 2.0) -> Tensor:
        """x, y times."""
        return x * y

    @classmethod
    def made(cls, x: Tensor) -> Tensor:
        return x

    @dovetail.compile
    def halved(self, x: Tensor) -> Tensor:
        """Half of x."""
        return x / 2

    def __call__(self, x: Tensor, *, flag: bool = False) -> Tensor:
        return x


@pytest.mark.parametrize(
    "target",
    [
        _Scaled().times,
        _Scaled.times,
        _Scaled.made,
        _Scaled(),
        partial(_Scaled().times, y=3.0),
        nn.Linear(2, 2),
        nn.Linear(2, 2).forward,
    ],
)
def test_what_is_compiled_says_what_it_takes(target: Any) -> None:
    """A method seemed to take its object as an argument, and a module seemed to have no signature."""
    compiled = dovetail.compile(target)
    assert inspect.signature(compiled) == inspect.signature(target)
    assert compiled.__doc__ == target.__doc__


def test_a_compiled_method_takes_no_object() -> None:
    assert str(inspect.signature(_Scaled().halved)) == "(x: 'Tensor') -> 'Tensor'"
    assert _Scaled().halved.__doc__ == "Half of x."
    with pytest.raises(ValueError, match="no signature"):
        inspect.signature(dovetail.compile(torch.sin))
