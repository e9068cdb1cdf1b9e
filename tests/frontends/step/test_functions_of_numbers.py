"""Functions of NumPy, `math` and `statistics` over numbers that a step computes: called with each run's numbers."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict, deque
from collections.abc import Callable
from math import exp, fsum
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import dovetail
from dovetail.errors import UnsupportedStep

CALLS = 8


class Trainer:
    """A small model, and what users keep of its losses."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(3, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1)
        self.window: deque[Any] = deque([1.0, 2.0, 3.0], maxlen=3)
        self.metrics: Any = defaultdict(float)
        self.seen: list[Any] = []
        self.average = np.mean
        self.mean: Any = None
        self.smooth = np.float64(0.5)

    def losses(self, x: torch.Tensor) -> tuple[float, float]:
        self.optimizer.zero_grad()
        made = self.model(x)
        loss = made.square().mean()
        loss.backward()
        self.optimizer.step()
        return loss.item(), made.max().item()


def _window(trainer: Trainer, x: torch.Tensor) -> Any:
    trainer.window.append(trainer.losses(x)[0])
    return np.mean(trainer.window), statistics.fmean(trainer.window), np.median(list(trainer.window))


def _of_one(trainer: Trainer, x: torch.Tensor) -> Any:
    loss, most = trainer.losses(x)
    return np.exp(loss), np.log(loss) * 2, np.sqrt(loss) + most, np.maximum(loss, most), np.tanh(most).item() + 1


def _of_many(trainer: Trainer, x: torch.Tensor) -> Any:
    loss, most = trainer.losses(x)
    both = [loss, most, 0.1]
    return math.fsum(both), math.hypot(loss, most), math.prod(both), np.std(both), np.percentile(both, 30), max(both)


def _statistics(trainer: Trainer, x: torch.Tensor) -> Any:
    loss, most = trainer.losses(x)
    return statistics.mean([loss, most]), statistics.pstdev((loss, most)), np.average([loss, most], axis=0)


def _kept(trainer: Trainer, x: torch.Tensor) -> Any:
    loss, most = trainer.losses(x)
    trainer.metrics["mean"] = np.mean([loss, most])
    trainer.seen.append(np.round(loss, 3))
    return f"{np.mean([loss, most]):.3f} {np.exp(loss)}"


def _asked(trainer: Trainer, x: torch.Tensor) -> Any:
    loss, most = trainer.losses(x)
    if np.isnan(loss) or not np.isfinite(most):
        raise ValueError
    return loss if np.mean([loss, most]) < 1e6 else most


def _in_tensors(trainer: Trainer, x: torch.Tensor) -> Any:
    loss, most = trainer.losses(x)
    return (
        torch.tensor(np.exp(loss)),
        torch.tensor([np.mean([loss, most])], dtype=torch.float32),
        x * float(np.exp(most)),
    )


def _of_schedules(trainer: Trainer, x: torch.Tensor) -> Any:
    trainer.metrics["calls"] += 1
    rate = float(0.1 * 0.5 * (1 + np.cos(np.pi * trainer.metrics["calls"] / 20)))
    for group in trainer.optimizer.param_groups:
        group["lr"] = rate
    return trainer.losses(x)[0], rate


def _averaged(trainer: Trainer, x: torch.Tensor) -> Any:
    loss, most = trainer.losses(x)
    trainer.mean = np.mean([loss, most])
    trainer.smooth = 0.9 * trainer.smooth + 0.1 * most
    return trainer.mean - trainer.smooth, math.fsum([trainer.smooth, trainer.mean])


def _by_name(trainer: Trainer, x: torch.Tensor) -> Any:
    loss, most = trainer.losses(x)
    trainer.seen.append(trainer.average([loss, most]) if trainer.average is np.mean else 0.0)
    return exp(loss), [exp(number) for number in (loss, 0.5)], fsum([loss, most]), exp is math.exp, exp.__name__


STEPS = [_averaged, _by_name, _window, _of_one, _of_many, _statistics, _kept, _asked, _in_tensors, _of_schedules]


def _same(mine: Any, theirs: Any) -> bool:
    if isinstance(theirs, torch.Tensor):
        return mine.dtype == theirs.dtype and torch.equal(mine, theirs)
    if isinstance(theirs, list | tuple | deque):
        return type(mine) is type(theirs) and len(mine) == len(theirs) and all(map(_same, mine, theirs))
    if isinstance(theirs, dict):
        return list(mine) == list(theirs) and all(_same(mine[key], theirs[key]) for key in theirs)
    return type(mine) is type(theirs) and repr(mine) == repr(theirs)


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__[1:])
def test_functions_are_called_with_the_numbers_of_each_run(step: Callable[[Trainer, torch.Tensor], Any]) -> None:
    mine, theirs, compiled = Trainer(), Trainer(), dovetail.compile_step(step)
    generator = torch.Generator().manual_seed(1)
    for number in range(CALLS):
        x = torch.randn(4, 3, generator=generator)
        assert _same(compiled(mine, x), step(theirs, x)), number
        for name in ("window", "metrics", "seen", "mean", "smooth"):
            assert _same(getattr(mine, name), getattr(theirs, name)), (number, name)
    assert all(map(torch.equal, mine.model.parameters(), theirs.model.parameters()))
    assert compiled.stats.captures <= 3, compiled.stats
    assert compiled.stats.eager_calls <= 1


_OF_CONTAINERS: dict[str, Callable[[Any], Any]] = {
    "max": lambda held: max(held, default=0.0),
    "min": lambda held: min(held, default=0.0),
    "max by a key": lambda held: max(held, key=lambda number: -number),
    "max of two": lambda held: max([0.5], list(held))[0],
    "fsum": lambda held: math.fsum(held) + 1,
    "prod": lambda held: math.prod(held, start=2.0),
    "dist": lambda held: math.dist(held, (0.0, 1.0, 2.0)),
}


@pytest.mark.parametrize("computed", [False, True], ids=["plain", "computed"])
@pytest.mark.parametrize("kind", [list, deque])
@pytest.mark.parametrize("read", _OF_CONTAINERS.values(), ids=_OF_CONTAINERS)
def test_functions_read_what_the_step_has_put_into_a_container(read: Any, kind: Any, computed: bool) -> None:
    def made() -> tuple[Any, Any]:
        held = kind([1.5, 0.25])

        def step(x: torch.Tensor) -> Any:
            held.append(x.sum().item() if computed else len(x) / 8)
            return read(held)

        return step, held

    (step, theirs), (other, mine) = made(), made()
    compiled = dovetail.compile_step(other)
    for number in (1.0, 0.1):
        x = torch.full((1,), number)
        assert _same(compiled(x), step(x))
        assert _same(mine, theirs)
        mine.pop(), theirs.pop()


def test_another_function_under_the_same_name_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def step(x: torch.Tensor) -> float:
        return exp(x.sum().item())

    compiled, here = dovetail.compile_step(step), step.__globals__
    for function in (math.exp, math.exp, math.sin, math.exp):
        monkeypatch.setitem(here, "exp", function)
        assert compiled(torch.ones(1)) == function(1.0)
        assert here["exp"] is function
    assert compiled.stats.captures == 2


def test_truth_values_of_tensors_are_numbers() -> None:
    def step(trainer: Trainer, x: torch.Tensor) -> Any:
        trainer.losses(x)
        hits = (x > 0).sum(1)
        for hit in hits > 1:
            trainer.metrics["hits"] += int(hit)
        return float((x > 0).all()), bool((x > 5).any())

    mine, theirs, compiled = Trainer(), Trainer(), dovetail.compile_step(step)
    generator = torch.Generator().manual_seed(1)
    for number in range(CALLS):
        x = torch.randn(4, 3, generator=generator)
        assert _same(compiled(mine, x), step(theirs, x)), number
        assert _same(mine.metrics, theirs.metrics)
    assert compiled.stats.captures <= 3, compiled.stats


def test_a_table_with_a_default_that_is_only_filled() -> None:
    def step(trainer: Trainer, x: torch.Tensor) -> None:
        for number, loss in enumerate(trainer.losses(x)):
            trainer.metrics[f"losses/{number}"] = loss

    mine, compiled = Trainer(), dovetail.compile_step(step)
    for _ in range(CALLS):
        compiled(mine, torch.ones(4, 3))
    assert compiled.stats.captures == 1
    assert len(mine.metrics) == 2


def test_arrays_of_computed_numbers_are_refused_as_before() -> None:
    compiled, trainer = dovetail.compile_step(lambda t, x: np.array(t.losses(x))), Trainer()
    compiled(trainer, torch.ones(4, 3))
    with pytest.raises(UnsupportedStep, match="plain Python number"):
        compiled(trainer, torch.ones(4, 3))


@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.SGD])
def test_rates_that_are_numbers_of_numpy(optimizer: Any) -> None:
    rates = np.linspace(0.1, 0.01, 20)

    def step(trainer: Trainer, x: torch.Tensor, factor: Any) -> Any:
        return trainer.losses(x * factor)[0], trainer.optimizer.param_groups[0]["lr"]

    mine, theirs, compiled = Trainer(), Trainer(), dovetail.compile_step(step)
    for trainer in (mine, theirs):
        trainer.optimizer = optimizer(trainer.model.parameters(), 0.1)
    for number in range(20):
        for trainer in (mine, theirs):
            trainer.optimizer.param_groups[0]["lr"] = rates[number]
        assert _same(compiled(mine, torch.ones(4, 3), rates[-number]), step(theirs, torch.ones(4, 3), rates[-number]))
    assert all(map(torch.equal, mine.model.parameters(), theirs.model.parameters()))
    assert compiled.stats.captures <= 3, compiled.stats
    assert not compiled.stats.eager_calls
