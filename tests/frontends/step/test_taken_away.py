"""Attributes and variables that a step takes away in some calls, and sets in others."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import dovetail


class Owner:
    """Holds what steps set and take away."""

    always = 7

    def __init__(self) -> None:
        self.number = 0
        self.layer = torch.nn.Linear(2, 2)
        self.slotted = Slotted()
        self.other: Any = None


class Slotted:
    """Has a slot, and no attributes besides."""

    __slots__ = ("held",)
    held: Any


def _tensor(owner: Any, x: Tensor) -> Any:
    if hasattr(owner, "held"):
        found = owner.held.sum()
        del owner.held
        return found
    owner.held = x * 2
    return x


def _number(owner: Any, x: Tensor) -> Any:
    if hasattr(owner, "held"):
        found = owner.held
        delattr(owner, "held")
        return found, hasattr(owner, "held")
    owner.held = x.sum().item()
    return x


def _list(owner: Any, x: Tensor) -> Any:
    if "held" in vars(owner):
        return vars(owner).pop("held")[0] * 2
    owner.held = [x.sum()]
    return x


def _slot(owner: Any, x: Tensor) -> Any:
    if hasattr(owner.slotted, "held"):
        found = owner.slotted.held * 2
        del owner.slotted.held
        return found
    owner.slotted.held = x * 3
    return x


def _of_module(owner: Any, x: Tensor) -> Any:
    if "held" in owner.layer._buffers:
        found = owner.layer.held.sum()
        del owner.layer.held
        return found
    owner.layer.register_buffer("held", x * 2)
    return x


def _variable(owner: Any, x: Tensor) -> Any:
    global shared  # noqa: PLW0603
    if "shared" in globals():
        found = shared.sum()
        del shared
        return found
    shared = x * 2
    return x


def _handed_on(owner: Any, x: Tensor) -> Any:
    if hasattr(owner, "held"):
        owner.other = owner.held
        del owner.held
        return owner.other + x
    owner.held = x * 2
    return x


def _of_the_class(owner: Any, x: Tensor) -> Any:
    if "always" in vars(owner):
        del owner.always
        return owner.always
    owner.always = 8
    return owner.always


def _anew(owner: Any, x: Tensor) -> Any:
    if hasattr(owner, "held"):
        del owner.held
    owner.other = 1
    owner.held = x.sum()
    return owner.held, list(vars(owner))


def _counted(owner: Any, x: Tensor) -> Any:
    owner.number += 1
    if owner.number % 3 == 0:
        owner.held = x.clone()
    elif hasattr(owner, "held"):
        del owner.held
    return owner.held.sum() if hasattr(owner, "held") else x


USES = [_tensor, _number, _list, _slot, _of_module, _variable, _handed_on, _of_the_class, _anew, _counted]


@pytest.mark.parametrize("use", USES, ids=[use.__name__.strip("_") for use in USES])
def test_it_is_gone_after_each_call_as_in_eager_mode(use: Callable[[Any, Tensor], Any]) -> None:
    found, stats = [], None
    for compiled in (False, True):
        owner, weight = Owner(), torch.zeros(2)

        def step(x: Tensor) -> Any:
            weight.add_(x)  # noqa: B023
            return use(owner, x)  # noqa: B023

        run = dovetail.compile_step(step) if compiled else step
        globals().pop("shared", None)
        results: list[Any] = []
        for number in range(9):
            results.append(
                (repr(run(torch.ones(2) + number)), [*vars(owner)], [*vars(owner.layer)], "shared" in globals())
            )
        found.append((results, repr(owner.other), weight.tolist()))
        stats = run.stats if compiled else None
    assert found[0] == found[1]
    assert stats is not None
    assert stats.eager_calls <= 1


def test_nothing_keeps_what_was_taken_away() -> None:
    owner = Owner()
    run = dovetail.compile_step(lambda x: _tensor(owner, x))
    held = []
    for _ in range(6):
        run(torch.ones(2))
        held += [weakref.ref(owner.held)] if hasattr(owner, "held") else []
    gc.collect()
    assert [reference() for reference in held] == [None] * 3


def test_a_failed_call_takes_nothing_away() -> None:
    owner = Owner()

    def step(x: Tensor) -> Tensor:
        if hasattr(owner, "held"):
            del owner.held
            raise ValueError("after")
        return x

    run = dovetail.compile_step(step)
    run(torch.ones(2))
    owner.held = 1
    with pytest.raises(ValueError, match="after"):
        run(torch.ones(2))
    assert not hasattr(owner, "held")  # as eager mode leaves it


def test_the_state_of_an_optimizer_is_cleared_as_in_eager_mode() -> None:
    found = []
    for compiled in (False, True):
        torch.manual_seed(0)
        layer = torch.nn.Linear(2, 1)
        optimizer = torch.optim.Adam(layer.parameters(), 0.1)
        counter = Owner()

        def step(x: Tensor) -> Tensor:
            counter.number += 1  # noqa: B023
            if counter.number % 3 == 0:  # noqa: B023
                optimizer.state.clear()  # noqa: B023
            optimizer.zero_grad()  # noqa: B023
            loss = layer(x).square().mean()  # noqa: B023
            loss.backward()
            optimizer.step()  # noqa: B023
            return loss.detach()

        run = dovetail.compile_step(step) if compiled else step
        losses = [run(torch.ones(3, 2) * number).item() for number in range(8)]
        found.append((losses, layer.weight.tolist(), [float(x["step"]) for x in optimizer.state.values()]))
    assert found[0] == found[1]
