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
from dovetail.errors import StateChangedOtherwise, UnsupportedStep
from dovetail.frontends.step import host_calls


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


def _in_groups(weights: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
    groups = [{"params": [weight], "lr": 0.1 * (number + 1)} for number, weight in enumerate(weights)]
    return torch.optim.SGD(groups, 0.1, momentum=0.9)


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


def _rates_before(t: Training, x: Tensor) -> Any:
    rates, first = t.scheduler.get_last_lr(), t.scheduler._last_lr[0]
    loss = t.update(x * rates[0])
    t.scheduler.step()
    return loss, rates, f"{first:.3e}", len(rates)


def _rates_around(t: Training, x: Tensor) -> Any:
    before = t.scheduler.get_last_lr()[0]
    loss = t.update(x)
    t.scheduler.step()
    return loss, before, t.scheduler.get_last_lr(), t.group["lr"]


def _asked_before(t: Training, x: Tensor) -> Any:
    loss = t.update(x)
    if t.scheduler.get_last_lr()[0] < 0.03:
        loss = loss * 2
    t.scheduler.step()
    return loss


def _rates_by_the_loss(t: Training, x: Tensor) -> Any:
    rates, loss = t.scheduler.get_last_lr(), t.update(x)
    t.scheduler.step(loss)
    return loss, rates


def _rates_of_parts(t: Training, x: Tensor) -> Any:
    whole, *parts = t.scheduler
    before = [part.get_last_lr()[0] for part in parts]
    loss = t.update(x)
    whole.step()
    return loss, before, [part.get_last_lr()[0] for part in (whole, *parts)]


def _rates_of_one_not_stepped(t: Training, x: Tensor) -> Any:
    loss = t.update(x)
    first, second = t.scheduler
    first.step()
    between = second.get_last_lr()
    second.step()
    return loss, between, first.get_last_lr(), second.get_last_lr()


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


def _sequence_and_parts(optimizer: torch.optim.Optimizer) -> Any:
    whole = _sequence(optimizer)
    return [whole, *whole._schedulers]


class _Tripled(schedulers.ExponentialLR):
    """One of the user's that holds other rates than those of the groups."""

    def step(self, epoch: int | None = None) -> None:
        super().step(epoch)
        self._last_lr = [3 * rate for rate in self._last_lr]


def _tripled(optimizer: torch.optim.Optimizer) -> Any:
    return _Tripled(optimizer, 0.9)


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
    **{
        f"rates before, {make.__name__.strip('_')}": (make, _rates_before, kind)
        for make, kind in ((_step_lr, _momentum), (_sequence, _momentum), (_cycle, _adam), (_chain, _in_groups))
    },
    "rates around, groups": (_step_lr, _rates_around, _in_groups),
    "rates around, the user's": (_tripled, _rates_around, _momentum),
    "asked before": (_step_lr, _asked_before, _momentum),
    "rates before, by the loss": (lambda o: schedulers.ReduceLROnPlateau(o, patience=0), _rates_by_the_loss, _adam),
    "rates of parts": (_sequence_and_parts, _rates_of_parts, _momentum),
    "rates of one not stepped": (_pair, _rates_of_one_not_stepped, _momentum),
}


@pytest.mark.parametrize("name", CASES)
def test_like_eager(name: str) -> None:
    case = CASES[name]
    assert _outcome(*case, compiled=True)[0] == _outcome(*case, compiled=False)[0]


def test_what_is_said_once_does_not_shift_the_schedulers(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a library says once is made by the first run alone: numbers are read after the same schedulers in all."""
    monkeypatch.setattr(host_calls, "is_remembered", lambda *_: True)

    def body(t: Training, x: Tensor) -> Any:
        warnings.warn("said once", stacklevel=1)
        return _two(t, x)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found, expected = (_outcome(_pair, body, _adam, compiled=which)[0] for which in (True, False))
    assert found == expected


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


def test_what_no_scheduler_is_known_to_leave_is_refused() -> None:
    with pytest.raises(UnsupportedStep, match="reads 'last_epoch'"):
        _outcome(_step_lr, _read_after_the_rates, _momentum, compiled=True)


def _put_among_the_rates(t: Training, x: Tensor) -> Any:
    t.scheduler._last_lr[0] = 7.0
    return t.update(x)


def test_changing_the_list_of_rates_is_refused() -> None:
    with pytest.raises(StateChangedOtherwise, match="changes the list of rates"):
        _outcome(_step_lr, _put_among_the_rates, _momentum, compiled=True)


@pytest.mark.parametrize("runs", [False, True], ids=["calls", "run"])
def test_rates_are_read_of_the_scheduler_that_is_there(runs: bool) -> None:
    """Another scheduler in the same place, and another state of it, need no other program; another group does."""

    def outcome(compiled: bool) -> tuple[list[Any], Any]:
        net, other = nn.Linear(3, 2), nn.Linear(3, 2)
        t = Training(None, _momentum(net.parameters()), net)
        t.scheduler = _step_lr(t.optimizer)

        def step(x: Tensor) -> Any:
            rates, _ = t.scheduler.get_last_lr(), net(x).sum()
            t.scheduler.step()
            return len(rates), rates

        called: Any = dovetail.compile_step(step) if compiled else step
        found = []
        for number in range(8):
            if number == 2:
                t.scheduler = schedulers.StepLR(t.optimizer, 1, 0.9)
            if number == 4:
                t.scheduler.load_state_dict({**t.scheduler.state_dict(), "_last_lr": [0.25]})
            if number == 6:
                t.optimizer.add_param_group({"params": list(other.parameters()), "lr": 0.3})
                t.scheduler._last_lr = [0.5, 0.25]
                t.scheduler.base_lrs.append(0.3)
            results = called.run([torch.ones(4, 3)]) if compiled and runs else called(torch.ones(4, 3))
            found.append((results[0][0], [x[0] for x in results[1]]) if compiled and runs else results)
        return found, called

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the optimizer makes no step
        expected, _ = outcome(False)
        found, step = outcome(True)
    assert found == expected
    assert [variant.calls for variant in step.stats.variants] == [6, 2]
