"""Attributes of classes that calls change: classes with a metaclass, and functions of autograd, which have one."""

from __future__ import annotations

import abc
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dovetail


class _Registry(type):
    made = 0

    def __new__(cls, name: str, bases: tuple[type, ...], space: dict[str, Any]) -> Any:
        cls.made += 1
        return super().__new__(cls, name, bases, space)


def _counter(metaclass: type, how: str) -> tuple[Callable[[Tensor], Tensor], Callable[[], Any]]:
    """A function that counts its calls in an attribute of a class, and what tells how it stands."""
    base: Any = metaclass("Base", (), {"__module__": __name__, "calls": 0})
    derived: Any = metaclass("Derived", (base,), {"__module__": __name__})

    def plain(x: Tensor) -> Tensor:
        base.calls += 1
        return x * base.calls

    def inherited(x: Tensor) -> Tensor:  # the first call gives the class an attribute of its own
        derived.calls += 1
        return x * derived.calls

    def by_name(x: Tensor) -> Tensor:
        setattr(base, "calls", getattr(base, "calls") + 1)  # noqa: B009, B010
        return x * base.calls

    def new(x: Tensor) -> Tensor:
        base.last = len(x) + getattr(base, "last", 0)
        return x * base.last

    def taken_away(x: Tensor) -> Tensor:
        if "once" in vars(base):
            del base.once
            return x * 2
        base.once = 1
        return x

    def tensor(x: Tensor) -> Tensor:
        before = vars(base).get("mean")
        base.mean = x.mean() if before is None else before * 0.9 + x.mean()
        return x - base.mean

    made = locals()[how]
    return made, lambda: [_shown(kind, name) for kind in (base, derived) for name in ("calls", "last", "once", "mean")]


def _shown(kind: type, name: str) -> Any:
    value = vars(kind).get(name)
    return (type(value), value.tolist()) if isinstance(value, Tensor) else value


_WAYS = ("plain", "inherited", "by_name", "new", "taken_away", "tensor")


def _called(function: Callable[[Tensor], Tensor], look: Callable[[], Any]) -> list[Any]:
    generator = torch.Generator().manual_seed(7)
    return [(function(torch.randn(3, generator=generator)).tolist(), look()) for _ in range(5)]


@pytest.mark.parametrize("metaclass", [type, _Registry, abc.ABCMeta], ids=lambda kind: kind.__name__.strip("_"))
@pytest.mark.parametrize("how", _WAYS)
def test_attribute_of_a_class_in_a_step(metaclass: type, how: str) -> None:
    expected = _called(*_counter(metaclass, how))
    function, look = _counter(metaclass, how)
    assert _called(dovetail.compile_step(function), look) == expected


@pytest.mark.parametrize("metaclass", [type, _Registry, abc.ABCMeta], ids=lambda kind: kind.__name__.strip("_"))
@pytest.mark.parametrize("how", _WAYS)
def test_attribute_of_a_class_in_a_compiled_function(metaclass: type, how: str) -> None:
    expected = _called(*_counter(metaclass, how))
    function, look = _counter(metaclass, how)
    before = look()
    try:
        assert _called(dovetail.compile(function), look) == expected
    except dovetail.DovetailError:
        assert how == "tensor"
        assert look() == before


def _of_autograd(how: str) -> tuple[Any, Callable[[], Any]]:
    """A function that changes an attribute of its class, or a variable, in one of its halves; and how that stands."""
    count = 0

    class Function(torch.autograd.Function):
        calls = 0
        mean: Any = None

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            if how == "forward":
                Function.calls += 1
                return x * Function.calls
            return x * 1

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            nonlocal count
            if how == "backward":
                Function.calls += 1
                return gradient * Function.calls
            if how == "variable":
                count += 1
                return gradient * count
            if how == "tensor":
                norm = gradient.norm()
                Function.mean = norm if Function.mean is None else 0.9 * Function.mean + 0.1 * norm
                return gradient / Function.mean
            return gradient

    return Function, lambda: (Function.calls, count, _shown(Function, "mean"))


def _trained(function: Any, look: Callable[[], Any], door: str) -> list[Any]:
    torch.manual_seed(0)
    net = nn.Linear(4, 3)

    def loss_of(x: Tensor) -> Tensor:
        return torch.as_tensor(function.apply(net(x)).exp().sum())

    called = dovetail.compile(loss_of) if door == "function" else loss_of

    def step(x: Tensor) -> None:
        net.zero_grad()
        called(x).backward()

    run = dovetail.compile_step(step, keep_grads=True) if door == "step" else step
    found: list[Any] = []
    for _ in range(4):
        run(torch.randn(3, 4))
        found.append(([p.grad.tolist() for p in net.parameters() if p.grad is not None], look()))
    return found


@pytest.mark.parametrize("door", ["step", "function"])
@pytest.mark.parametrize("how", ["forward", "backward", "variable", "tensor"])
def test_a_function_of_autograd_that_changes_state(door: str, how: str) -> None:
    expected = _trained(*_of_autograd(how), "")
    function, look = _of_autograd(how)
    before = look()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dovetail.DovetailWarning)  # in backward: it runs in eager mode from then on
        try:
            assert _trained(function, look, door) == expected
        except dovetail.DovetailError:
            assert (door, how) == ("function", "tensor")
            assert look() == before
