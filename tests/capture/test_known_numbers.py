"""Tensors of one number whose number is known while a step runs on fakes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from dovetail.capture.known_numbers import KnownNumbers
from dovetail.torch_compat.dispatch import DispatchMode

Act = Callable[[torch.Tensor], torch.Tensor]


class Following(DispatchMode):
    """Runs operators on stand-ins that hold other numbers, and lets `known` follow."""

    def __init__(self) -> None:
        super().__init__()
        self.known = KnownNumbers()
        self.alive: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.alive += [args, result]
        self.known.follow(func, args, kwargs or {}, result)
        return result


def _known(act: Act, number: torch.Tensor) -> Any:
    following = Following()
    stand_in = torch.zeros_like(number)
    following.known.learn(stand_in, number)
    with following:
        made = act(stand_in)
    return following.known.number(made)


NUMBERS = (
    torch.tensor(3.0),
    torch.tensor([-0.1]),
    torch.tensor(math.nan),
    torch.tensor(math.inf),
    torch.tensor(7),
    torch.tensor(2.5, dtype=torch.float64),
    torch.tensor(1.5, dtype=torch.bfloat16),
)
ACTS: tuple[Act, ...] = (
    lambda x: x + 1,
    lambda x: x * 0.5,
    lambda x: x.add_(1),
    lambda x: x.add_(1).mul_(2),
    lambda x: (x + x).double(),
    lambda x: torch.where(x > 2, x, x + 1),
    lambda x: x > 2,
    lambda x: x.isfinite(),
    lambda x: x.reshape(1, 1).squeeze(),
    lambda x: x.copy_(x * 2),
    lambda x: x.zero_(),
    lambda x: x.clone().fill_(4),
)


@pytest.mark.parametrize("number", NUMBERS, ids=str)
@pytest.mark.parametrize("act", ACTS, ids=range(len(ACTS)))
def test_as_if_the_numbers_were_there(act: Act, number: torch.Tensor) -> None:
    found, expected = _known(act, number), act(number.clone()).item()
    assert type(found) is type(expected)
    assert found == expected or (math.isnan(found) and math.isnan(expected))


def test_a_write_through_a_view_is_followed() -> None:
    following = Following()
    x = torch.zeros(1)
    following.known.learn(x, torch.tensor([3.0]))
    with following:
        x.view(()).add_(1)
    assert following.known.number(x) == 4.0


def test_what_is_learned_is_a_copy() -> None:
    following = Following()
    x, number = torch.zeros(()), torch.tensor(3.0)
    following.known.learn(x, number)
    with following:
        x.add_(1)
    assert number.item() == 3.0
    assert following.known.number(x) == 4.0


_ONE = torch.ones(())
UNKNOWN: tuple[Act, ...] = (
    lambda x: x + torch.ones(3),
    lambda x: x * _ONE,
    torch.rand_like,
    lambda x: x.uniform_(),
    lambda x: x.copy_(_ONE),
    lambda x: x.expand(3).sum(),
)


@pytest.mark.parametrize("act", UNKNOWN, ids=range(len(UNKNOWN)))
def test_what_does_not_follow_is_not_known(act: Act) -> None:
    assert _known(act, torch.tensor(3.0)) is None


def test_an_unknown_write_is_not_known_through_a_view_either() -> None:
    following = Following()
    x, other = torch.zeros(1), torch.ones(1)
    following.known.learn(x, torch.tensor([3.0]))
    with following:
        view = x.view(())
        assert following.known.number(view) == 3.0
        view.add_(other.sum())
    assert following.known.number(view) is None
    assert following.known.number(x) is None


def test_tensors_of_more_numbers_are_not_known() -> None:
    known = KnownNumbers()
    many = torch.ones(2)
    known.learn(many, many)
    assert known.number(many) is None
    assert known.number(torch.ones(())) is None


def test_complex_numbers_are_not_known() -> None:
    known = KnownNumbers()
    number = torch.tensor(1j)
    known.learn(number, number)
    assert known.number(number) is None
