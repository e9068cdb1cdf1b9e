"""Roundabout ways in which code reads a value: a change is noticed in each, and undone."""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import pytest
import torch

from dovetail.frontends.step.reachable_state import ReachableState
from tests.frontends.step.reachable_states import names_read_by

_HERE = sys.modules[__name__]
NUMBER = 1.0
Way = tuple[Callable[..., Any], Callable[[], Any]]


class Described:
    def __get__(self, item: Any, kind: Any) -> Any:
        return item.__dict__["hidden"] if item is not None else self


class Item:
    described = Described()
    factor = 2.0

    def __init__(self) -> None:
        self.hidden = 1
        self.table = {"delegated": 1, "deep": {"list": [1]}}

    def __getattr__(self, name: str) -> Any:
        return self.table[name]

    def __rmul__(self, other: int) -> int:
        return self.hidden * other

    def __enter__(self) -> int:
        return self.hidden

    def __exit__(self, *_: object) -> None:
        pass

    @property
    def shown(self) -> int:
        return self.hidden

    def scaled(self, by: float) -> float:
        return by * NUMBER

    half = functools.partialmethod(scaled, 0.5)


class Slotted:
    __slots__ = ("hidden",)

    def __init__(self) -> None:
        self.hidden = 1


_of_object: Any = object.__getattribute__
_slot: Any = Slotted.__dict__["hidden"]


class Scaled(torch.autograd.Function):
    scale = 2.0

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * Scaled.scale

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * Scaled.scale


class Descent(torch.optim.SGD):
    factor = 1.0

    def step(self, closure: Any = None) -> None:
        self.use()

    def use(self) -> float:
        return self.factor


@functools.singledispatch
def dispatched(_: Any) -> float:
    return NUMBER


@torch.compile(backend="eager")
def compiled(x: torch.Tensor) -> torch.Tensor:
    return x * NUMBER


def _number() -> None:
    _HERE.NUMBER = 5.0  # type: ignore[attr-defined]


def descriptor(item: Item) -> Way:
    return lambda: item.described, lambda: setattr(item, "hidden", 2)


def a_property(item: Item) -> Way:
    return lambda: item.shown, lambda: setattr(item, "hidden", 2)


def delegation(item: Item) -> Way:
    return lambda: item.delegated, lambda: item.table.update(delegated=2)


def deep(item: Item) -> Way:
    return lambda: item.table, lambda: item.table["deep"]["list"].append(2)  # type: ignore[index]


def operator_of_the_other(item: Item) -> Way:
    return lambda: 2 * item, lambda: setattr(item, "hidden", 2)


def context_manager(item: Item) -> Way:
    def step() -> Any:
        with item as value:
            return value

    return step, lambda: setattr(item, "hidden", 2)


def name_in_a_text(item: Item) -> Way:
    return lambda: attrgetter("hidden")(item), lambda: setattr(item, "hidden", 2)


def partial_method(item: Item) -> Way:
    return item.half, _number


def autograd_function(_: Item) -> Way:
    return lambda: Scaled.apply(torch.ones(1)), lambda: setattr(Scaled, "scale", 3.0)


def own_optimizer(_: Item) -> Way:
    optimizer = Descent([torch.ones(1, requires_grad=True)], lr=0.1)
    return optimizer.step, lambda: setattr(Descent, "factor", 3.0)


def dispatch_on_type(_: Item) -> Way:
    return lambda: dispatched(1), _number


def compiled_function(_: Item) -> Way:
    return lambda: compiled(torch.ones(1)), _number


def module_made_at_run_time(_: Item) -> Way:
    module = types.ModuleType("made_at_run_time")
    module.inner = types.ModuleType("made_at_run_time.inner")  # type: ignore[attr-defined]
    module.inner.value = 1
    return lambda: module.inner.value, lambda: setattr(module.inner, "value", 2)


def forward_of_one_module(_: Item) -> Way:
    model = torch.nn.Linear(1, 1)
    model.forward = types.MethodType(lambda self, x: x, model)  # type: ignore[method-assign]
    return lambda: model(1), lambda: setattr(model, "forward", types.MethodType(lambda self, x: 2 * x, model))


def state_of_a_decorator(_: Item) -> Way:
    state = {"n": 0}

    def counted(function: Callable[[], Any]) -> Callable[[], Any]:
        @functools.wraps(function)
        def inner() -> Any:
            return function(), state

        return inner

    return counted(lambda: 1), lambda: state.update(n=1)


def hook_that_reads(_: Item) -> Way:
    model = torch.nn.Linear(1, 1)
    model.register_forward_hook(lambda *_: torch.ones(1) * NUMBER)
    return lambda: model(torch.ones(1)), _number


def bound_getattribute(item: Item) -> Way:
    return functools.partial(object.__getattribute__.__get__(item), "hidden"), lambda: setattr(item, "hidden", 2)


def getattribute_of_object(item: Item) -> Way:
    return lambda: _of_object(item, "hidden"), lambda: setattr(item, "hidden", 2)


def getattribute_through_a_loop_of_c(item: Item) -> Way:
    return lambda: list(map(_of_object, [item], ["hidden"])), lambda: setattr(item, "hidden", 2)


def static_attribute(item: Item) -> Way:
    return functools.partial(inspect.getattr_static, item, "hidden"), lambda: setattr(item, "hidden", 2)


def bound_getstate(item: Item) -> Way:
    read = object.__getstate__.__get__(item)  # type: ignore[attr-defined]
    return lambda: read()["hidden"], lambda: setattr(item, "hidden", 2)


def getter_of_a_slot(_: Item) -> Way:
    slotted = Slotted()
    return functools.partial(Slotted.hidden.__get__, slotted), lambda: setattr(slotted, "hidden", 2)  # type: ignore[attr-defined]


def slot_named_and_asked(_: Item) -> Way:
    slotted = Slotted()
    return lambda: _slot.__get__(slotted), lambda: setattr(slotted, "hidden", 2)


WAYS = [
    descriptor, a_property, delegation, deep, operator_of_the_other, context_manager, name_in_a_text, partial_method,
    autograd_function, own_optimizer, dispatch_on_type, compiled_function, module_made_at_run_time,
    forward_of_one_module, state_of_a_decorator, hook_that_reads, bound_getattribute, getattribute_of_object,
    getattribute_through_a_loop_of_c, static_attribute, bound_getstate, getter_of_a_slot, slot_named_and_asked,
]  # fmt: skip


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_change_is_noticed_however_it_is_read(way: Callable[[Item], Way]) -> None:
    step, edit = way(Item())
    read = names_read_by(step)
    reachable = ReachableState(step, read)
    guard, record = reachable.guard(), reachable.record()
    assert guard.holds(), guard.why()
    edit()
    assert not guard.holds()
    assert not record.fits(ReachableState(step, read).record())
    assert reachable.changes()
    assert reachable.restore() == []
    assert guard.holds(), guard.why()
    assert record.fits(ReachableState(step, read).record())
