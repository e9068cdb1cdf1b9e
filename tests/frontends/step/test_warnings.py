"""Warnings of compiled steps: as often as in eager mode, of the same lines, to whoever catches them."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any
from warnings import warn as warn_of_python

import pytest
import torch
from torch.nn import functional as F

import dovetail
from dovetail.errors import StepInterrupted


class Training:
    """A net and an optimizer that makes its state in the first call."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.net = torch.nn.Linear(3, 1)
        self.optimizer = torch.optim.AdamW(self.net.parameters())

    def train(self, x: torch.Tensor, target: torch.Tensor | None = None) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = self.net(x).square().mean() if target is None else F.mse_loss(self.net(x), target)
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def _plainly(self: Training, x: torch.Tensor) -> torch.Tensor:
    warnings.warn("careful", stacklevel=1)
    return self.train(x)


def _of_torch(self: Training, x: torch.Tensor) -> torch.Tensor:
    return self.train(x, torch.zeros(2))  # the sizes differ, of which `mse_loss` warns its caller


def _of_cpp(self: Training, x: torch.Tensor) -> torch.Tensor:
    loss = self.train(x)
    assert (x * 2).requires_grad_().mul(2).grad is None
    return loss


def _of_the_caller(self: Training, x: torch.Tensor) -> torch.Tensor:
    def helper() -> None:
        warnings.warn("of whoever calls", DeprecationWarning, stacklevel=2)

    helper()
    loss = self.train(x)
    helper()
    return loss


def _twice_in_one_line(self: Training, x: torch.Tensor) -> torch.Tensor:
    for text in ("one", "two", "one"):
        warnings.warn(text, RuntimeWarning, stacklevel=1)
    return self.train(x)


def _by_name(self: Training, x: torch.Tensor) -> torch.Tensor:
    warn_of_python("imported by name", stacklevel=1)
    return self.train(x)


def _as_an_object(self: Training, x: torch.Tensor) -> torch.Tensor:
    warnings.warn(FutureWarning("made before", 3), stacklevel=1)
    return self.train(x)


def _explicitly(self: Training, x: torch.Tensor) -> torch.Tensor:
    warnings.warn_explicit("of a file", UserWarning, "settings.toml", 7)
    return self.train(x)


def _with_filters_of_its_own(self: Training, x: torch.Tensor) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.warn("nobody hears", stacklevel=1)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("everybody hears", stacklevel=1)
    with warnings.catch_warnings(record=True) as kept:
        warnings.simplefilter("always")
        warnings.warn("kept", stacklevel=1)
    return self.train(x) * len(kept)


STEPS = [
    *(_plainly, _of_torch, _of_cpp, _of_the_caller, _twice_in_one_line, _by_name, _as_an_object, _explicitly),
    _with_filters_of_its_own,
]


def _told(step: Callable[..., Any], compiled: bool, action: Any) -> list[Any]:
    globals().pop("__warningregistry__", None)
    training = Training()
    run = functools.partial(step, training)
    if compiled:
        run = dovetail.compile_step(run)
    found: list[Any] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter(action)
        for n in range(5):
            try:
                found.append(run(torch.full((2, 3), float(n))).item())
            except Warning as error:
                found.append(repr(error))
            found.append([(str(w.message), w.category, w.filename, w.lineno) for w in caught])
    return [*found, training.net.weight.tolist()]


@pytest.mark.parametrize("action", ["default", "always", "once", "module", "ignore", "error"])
@pytest.mark.parametrize("step", STEPS)
def test_warnings_are_eagers(step: Callable[..., Any], action: Any) -> None:
    assert _told(step, compiled=True, action=action) == _told(step, compiled=False, action=action)


def test_filters_that_change_between_calls() -> None:
    def told(compiled: bool) -> list[Any]:
        training = Training()
        run: Any = functools.partial(_plainly, training)
        if compiled:
            run = dovetail.compile_step(run)
        found: list[Any] = []
        for action in ("ignore", "always", "error", "ignore", "error", "always"):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter(action)  # type: ignore[arg-type]
                try:
                    run(torch.ones(2, 3))
                except (Warning, StepInterrupted) as error:
                    found.append(repr(error))
                found.append([str(w.message) for w in caught])
            found.append(training.net.weight.tolist())
        return found

    assert told(compiled=True) == told(compiled=False)


def test_one_program_is_for_all_calls() -> None:
    step = dovetail.compile_step(functools.partial(_plainly, Training()))
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("default")
        for _ in range(4):
            step(torch.ones(2, 3))
    assert (step.stats.captures, step.stats.eager_calls) == (1, 0)


def test_what_a_function_warns_of_is_of_the_users_line() -> None:
    @dovetail.compile
    def loss(x: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(x, torch.zeros(2))

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        loss(torch.ones(2, 1))
    assert [(w.filename, w.category) for w in caught] == [(__file__, UserWarning)]


def test_a_wrong_category_is_refused_as_in_eager_mode() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        category: Any = int
        warnings.warn("careful", category, stacklevel=1)
        return x

    with pytest.raises(TypeError) as eager:
        step(torch.ones(1))
    with pytest.raises(TypeError) as ours:
        dovetail.compile_step(step)(torch.ones(1))
    assert str(ours.value) == str(eager.value)
