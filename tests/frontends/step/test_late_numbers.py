"""Numbers that schedulers change, read by a step after it has stepped them: as in eager mode."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler as schedulers

import dovetail
from dovetail.errors import UnsupportedStep


@dataclass
class Training:
    """What a step may use. update: one step of the optimizer. rates: a list to put something into."""

    scheduler: Any
    optimizer: torch.optim.Optimizer
    net: nn.Module
    rates: list[Any] = field(default_factory=list)
    rate: float = 0.0

    def update(self, x: Tensor) -> Tensor:
        self.optimizer.zero_grad()
        loss = self.net(x).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    @property
    def group(self) -> dict[str, Any]:
        return self.optimizer.param_groups[0]


Make = Callable[[torch.optim.Optimizer], Any]
Body = Callable[[Training, Tensor], Any]


def _momentum(weights: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(weights, 0.1, momentum=0.9)


def _adam(weights: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(weights, 0.1)


def _outcome(make: Make, body: Body, kind: Any, *, compiled: bool) -> tuple[list[Any], Any]:
    """All that a step gives and leaves, call by call; and the step."""
    torch.manual_seed(0)
    net = nn.Linear(3, 2)
    optimizer = kind(net.parameters())
    t = Training(make(optimizer), optimizer, net)

    def step(x: Tensor) -> Any:
        return body(t, x)

    called: Any = dovetail.compile_step(step) if compiled else step
    found = []
    for number in range(5):
        result = called(torch.full((4, 3), 0.1 * number + 0.1))
        groups = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
        state = [getattr(t.scheduler, "last_epoch", 0), t.rate, list(t.rates), groups]
        found.append(repr((result, state, [p.tolist() for p in net.parameters()])))
    return found, called


def _step_lr(optimizer: torch.optim.Optimizer) -> Any:
    return schedulers.StepLR(optimizer, 1, 0.5)


def _returned(t: Training, x: Tensor) -> Any:
    loss = t.update(x)
    t.scheduler.step()
    return loss, t.group["lr"]


def _before_and_after(t: Training, x: Tensor) -> Any:
    loss, before = t.update(x), t.group["lr"]
    t.scheduler.step()
    return loss, before, [group["lr"] for group in t.optimizer.param_groups]


def _of_state_dict(t: Training, x: Tensor) -> Any:
    loss = t.update(x)
    t.scheduler.step()
    return loss, t.optimizer.state_dict()["param_groups"][0]["lr"]


def _kept(t: Training, x: Tensor) -> Any:
    loss = t.update(x)
    t.scheduler.step()
    t.rate = t.group["lr"]
    return loss


def _appended(t: Training, x: Tensor) -> Any:
    loss = t.update(x)
    t.rates.append(t.group["lr"])
    t.scheduler.step()
    t.rates.append((loss, t.group["lr"]))
    return loss


def _bounded(t: Training, x: Tensor) -> Any:
    loss = t.update(x)
    t.scheduler.step()
    for group in t.optimizer.param_groups:
        group["lr"] = max(group["lr"], 0.03)
    return loss


def _set_afterwards(t: Training, x: Tensor) -> Any:
    loss = t.update(x)
    t.scheduler.step()
    t.group["lr"] = 0.07
    return loss


def _scaled(t: Training, x: Tensor) -> Any:
    loss = t.update(x)
    t.scheduler.step()
    t.group["lr"] *= 1.5
    return loss


def _set_before(t: Training, x: Tensor) -> Any:
    t.group["lr"] = t.group["lr"] * 1.1
    loss = t.update(x)
    t.scheduler.step()
    return loss


def _asked(t: Training, x: Tensor) -> Any:
    loss = t.update(x)
    t.scheduler.step()
    return loss * 2 if t.group["lr"] < 0.03 else loss


def _between_two_updates(t: Training, x: Tensor) -> Any:
    first = t.update(x)
    t.scheduler.step()
    return first, t.update(x)


def _text(t: Training, x: Tensor) -> Any:
    loss = t.update(x)
    t.scheduler.step()
    return loss, f"{t.group['lr']:.3e}"


def _last_lr(t: Training, x: Tensor) -> Any:
    loss = t.update(x)
    t.scheduler.step()
    return loss, t.scheduler.get_last_lr(), t.scheduler._last_lr[0]


def _two(t: Training, x: Tensor) -> Any:
    loss = t.update(x)
    first, second = t.scheduler
    first.step()
    between = t.group["lr"]
    second.step()
    return loss, between, t.group["lr"]


def _last_lr_of_each(t: Training, x: Tensor) -> Any:
    loss = t.update(x)
    first, second = t.scheduler
    first.step()
    second.step()
    t.group["lr"] *= 0.5
    return loss, first.get_last_lr(), second.get_last_lr(), first._last_lr[0]


def _all_of_the_group(t: Training, x: Tensor) -> Any:
    loss = t.update(x)
    t.scheduler.step()
    return loss, {key: value for key, value in t.group.items() if key != "params"}


def _cycle(optimizer: torch.optim.Optimizer) -> Any:
    return schedulers.OneCycleLR(optimizer, 0.5, total_steps=10)


def _sequence(optimizer: torch.optim.Optimizer) -> Any:
    parts = [schedulers.LinearLR(optimizer, 0.1, 1, 2), schedulers.CosineAnnealingLR(optimizer, 5)]
    return schedulers.SequentialLR(optimizer, parts, [2])


def _chain(optimizer: torch.optim.Optimizer) -> Any:
    parts = [schedulers.LinearLR(optimizer, 0.1, 1, 2), schedulers.ExponentialLR(optimizer, 0.9)]
    return schedulers.ChainedScheduler(parts)


def _pair(optimizer: torch.optim.Optimizer) -> Any:
    return [schedulers.StepLR(optimizer, 1, 0.5), schedulers.ExponentialLR(optimizer, 0.9)]


CASES: dict[str, tuple[Make, Body, Any]] = {
    **{
        body.__name__.strip("_"): (_step_lr, body, _momentum)
        for body in (
            *(_returned, _before_and_after, _of_state_dict, _kept, _appended, _bounded, _set_afterwards, _scaled),
            *(_set_before, _asked, _between_two_updates, _text, _last_lr),
        )
    },
    "momentum": (_cycle, _all_of_the_group, _momentum),
    "betas": (_cycle, _all_of_the_group, _adam),
    "sequence": (_sequence, _last_lr, _momentum),
    "chain": (_chain, _returned, _adam),
    "pair": (_pair, _two, _momentum),
    "last of each": (_pair, _last_lr_of_each, _momentum),
}


@pytest.mark.parametrize("name", CASES)
def test_like_eager(name: str) -> None:
    case = CASES[name]
    assert _outcome(*case, compiled=True)[0] == _outcome(*case, compiled=False)[0]


def test_no_warning_about_an_optimizer_that_has_not_stepped() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _, step = _outcome(_step_lr, _returned, _adam, compiled=True)
    assert step.stats.eager_calls == 0


def test_a_scheduler_that_is_stepped_early_is_put_back_where_the_program_is_another_one() -> None:
    def body(t: Training, x: Tensor) -> Any:
        loss = t.update(x)
        t.scheduler.step()
        return (loss * 2 if loss.item() > 0.5 else loss), t.group["lr"]

    expected, found = (_outcome(_step_lr, body, _momentum, compiled=which) for which in (False, True))
    assert found[0] == expected[0]


def _plateau(t: Training, x: Tensor) -> Any:
    loss = t.update(x)
    t.scheduler.step(loss)
    return loss, t.group["lr"]


def _set_and_read(t: Training, x: Tensor) -> Any:
    t.group["lr"] = t.group["lr"] * 1.1
    loss = t.update(x)
    t.scheduler.step()
    return loss, t.group["lr"]


def _told(t: Training, x: Tensor) -> Any:
    loss = t.update(x)
    dovetail.host_call(t.rates.append)(loss)
    t.scheduler.step()
    return loss, t.group["lr"]


def _read_after_the_rates(t: Training, x: Tensor) -> Any:
    loss = t.update(x)
    t.scheduler.step()
    return loss, t.scheduler.get_last_lr(), t.scheduler.last_epoch


def _rates_of_one_not_stepped(t: Training, x: Tensor) -> Any:
    loss = t.update(x)
    first, second = t.scheduler
    first.step()
    return loss, second.get_last_lr()


@pytest.mark.parametrize(
    ("make", "body"),
    [
        (lambda o: schedulers.ReduceLROnPlateau(o, patience=0), _plateau),
        (_step_lr, _set_and_read),
        (_step_lr, _told),
    ],
    ids=["by the loss", "set before", "after a host call"],
)
def test_what_cannot_be_stepped_before_the_program_is_refused(make: Make, body: Body) -> None:
    with pytest.raises(UnsupportedStep, match="between two uses of what it changes"):
        _outcome(make, body, _adam, compiled=True)


@pytest.mark.parametrize(
    ("make", "body", "what"),
    [(_step_lr, _read_after_the_rates, "last_epoch"), (_pair, _rates_of_one_not_stepped, "get_last_lr")],
    ids=["read after the rates", "of another scheduler"],
)
def test_what_no_scheduler_is_known_to_leave_is_refused(make: Make, body: Body, what: str) -> None:
    with pytest.raises(UnsupportedStep, match=f"reads '{what}'"):
        _outcome(make, body, _momentum, compiled=True)
