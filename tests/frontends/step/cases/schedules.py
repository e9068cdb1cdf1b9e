"""Learning rates that change: every kind of scheduler in the step, and one in the loop around it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor
from torch.optim import Optimizer, lr_scheduler

from tests.frontends.step.cases.training import Feature, Training
from tests.frontends.step.twins import Twin

Batch = dict[str, Tensor]


def _one_cycle(optimizer: Optimizer) -> Any:
    cycles = "momentum" in optimizer.defaults or "betas" in optimizer.defaults
    return lr_scheduler.OneCycleLR(optimizer, max_lr=0.03, total_steps=60, cycle_momentum=cycles)


def _warm_up(optimizer: Optimizer) -> Any:
    first = lr_scheduler.LinearLR(optimizer, start_factor=0.2, total_iters=4)
    then = lr_scheduler.ExponentialLR(optimizer, gamma=0.9)
    return lr_scheduler.SequentialLR(optimizer, [first, then], milestones=[4])


_KINDS: dict[str, Callable[[Optimizer], Any]] = {
    "StepLR": partial(lr_scheduler.StepLR, step_size=3, gamma=0.5),
    "CosineAnnealingLR": partial(lr_scheduler.CosineAnnealingLR, T_max=8, eta_min=1e-4),
    "OneCycleLR": _one_cycle,
    "LambdaLR": partial(lr_scheduler.LambdaLR, lr_lambda=lambda number: 1 / (1 + number)),
    "SequentialLR": _warm_up,
}


def _inside(make: Callable[[Optimizer], Any], t: Training) -> Twin:
    model, optimizers = t.model, t.optimizers()
    schedulers = [make(optimizer) for optimizer in optimizers]

    def step(batch: Batch) -> Tensor:
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = model(**batch)["loss"]
        loss.backward()
        for optimizer, scheduler in zip(optimizers, schedulers, strict=True):
            optimizer.step()
            scheduler.step()
        return loss

    return t.twin(optimizers, step, schedulers={str(k): it for k, it in enumerate(schedulers)})


def _plateau(t: Training) -> Twin:
    model, optimizers = t.model, t.optimizers()
    schedulers = [lr_scheduler.ReduceLROnPlateau(it, factor=0.5, patience=1, threshold=0.5) for it in optimizers]

    def step(batch: Batch) -> Tensor:
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = model(**batch)["loss"]
        loss.backward()
        for optimizer, scheduler in zip(optimizers, schedulers, strict=True):
            optimizer.step()
            scheduler.step(loss.detach())
        return loss

    return t.twin(optimizers, step, schedulers={str(k): it for k, it in enumerate(schedulers)})


def _outside(t: Training) -> Twin:
    model, optimizers = t.model, t.optimizers()
    schedulers = [lr_scheduler.CosineAnnealingLR(it, T_max=8) for it in optimizers]

    def step(batch: Batch) -> Tensor:
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = model(**batch)["loss"]
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        return loss

    def before(number: int) -> None:
        for scheduler in schedulers if number else ():
            scheduler.step()

    named = {str(k): it for k, it in enumerate(schedulers)}
    return t.twin(optimizers, step, schedulers=named, before=before)


SCHEDULES = (
    *(Feature(f"{name} in the step", partial(_inside, make)) for name, make in _KINDS.items()),
    Feature("ReduceLROnPlateau in the step", _plateau),
    Feature("CosineAnnealingLR in the loop", _outside),
)
