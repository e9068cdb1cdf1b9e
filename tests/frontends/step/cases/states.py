"""State next to the model: averages, teachers, counters and meters, a second player."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn, optim
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from tests.frontends.step.cases.training import Feature, Training
from tests.frontends.step.twins import Twin

Batch = dict[str, Tensor]


def _average_by_hand(t: Training) -> Twin:
    model, optimizers = t.model, t.optimizers()
    average = copy.deepcopy(model).requires_grad_(False)

    def step(batch: Batch) -> Tensor:
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = model(**batch)["loss"]
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        with torch.no_grad():
            for kept, p in zip(average.parameters(), model.parameters(), strict=True):
                kept.mul_(0.9).add_(p, alpha=0.1)
        return loss

    return t.twin(optimizers, step, models={"average": average})


def _averaged_model(t: Training) -> Twin:
    model, optimizers = t.model, t.optimizers()
    average = AveragedModel(model)

    def step(batch: Batch) -> Tensor:
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = model(**batch)["loss"]
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        average.update_parameters(model)
        return loss

    return t.twin(optimizers, step, models={"average": average})


def _moving_average(t: Training) -> Twin:
    model, optimizers = t.model, t.optimizers()
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)

    def step(batch: Batch) -> Tensor:
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = model(**batch)["loss"]
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        average.update_parameters(model)
        return loss

    return t.twin(optimizers, step, models={"average": average})


def _teacher(t: Training) -> Twin:
    """A copy in eval mode without gradients says what to learn, in part."""
    model, optimizers = t.model, t.optimizers()
    teacher = copy.deepcopy(model).eval().requires_grad_(False)

    def step(batch: Batch) -> tuple[Tensor, Tensor]:
        for optimizer in optimizers:
            optimizer.zero_grad()
        with torch.no_grad():
            told = teacher(**batch)["logits"].softmax(-1)
        out = model(**batch)
        distance = F.kl_div(out["logits"].log_softmax(-1), told, reduction="batchmean")
        loss = 0.5 * out["loss"] + 0.5 * distance
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        return loss.detach(), distance.detach()

    return t.twin(optimizers, step, models={"teacher": teacher})


class _Meter:
    """A running mean of numbers on the host."""

    def __init__(self) -> None:
        self.total = 0.0
        self.count = 0

    def add(self, value: float) -> None:
        self.total += value
        self.count += 1


class _Trainer:
    """A step as a method, on an object that counts, measures and keeps a smoothed loss."""

    def __init__(self, model: nn.Module, optimizers: tuple[optim.Optimizer, ...]) -> None:
        self.model = model
        self.optimizers = optimizers
        self.steps = 0
        self.meter = _Meter()
        self.smooth = torch.zeros(())

    def step(self, batch: Batch) -> float:
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        loss = self.model(**batch)["loss"]
        loss.backward()
        for optimizer in self.optimizers:
            optimizer.step()
        self.steps += 1
        self.meter.add(loss.item())
        self.smooth.mul_(0.9).add_(loss.detach(), alpha=0.1)
        return loss.item() / self.steps


def _trainer(t: Training) -> Twin:
    optimizers = t.optimizers()
    trainer = _Trainer(t.model, optimizers)

    def attributes() -> dict[str, object]:
        return {"steps": trainer.steps, "smooth": trainer.smooth, **vars(trainer.meter)}

    return t.twin(optimizers, trainer.step, attributes=attributes)


def _noise_by_hand(t: Training) -> Twin:
    """Decay and noise are written into parameters; running sums are kept in plain tensors of a dict."""
    model, optimizers = t.model, t.optimizers()
    sums = {name: torch.zeros_like(p) for name, p in model.named_parameters()}

    def step(batch: Batch) -> Tensor:
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = model(**batch)["loss"]
        loss.backward()
        with torch.no_grad():
            for name, p in model.named_parameters():
                p.mul_(0.999).add_(torch.randn_like(p), alpha=1e-3)
                if p.grad is not None:
                    sums[name] += p.grad.abs()
        for optimizer in optimizers:
            optimizer.step()
        return loss

    return t.twin(optimizers, step, attributes=lambda: {"sums": sums})


def _two_players(t: Training) -> Twin:
    """A generator and a discriminator, each with optimizers of its own, in one step."""
    generator, discriminator = t.model.generator, t.model.discriminator
    makes = t.recipe.build(list(generator.parameters()))
    judges = t.recipe.build(list(discriminator.parameters()))

    def step(batch: Batch) -> tuple[Tensor, Tensor]:
        real = batch["real"]
        made = generator(torch.randn(len(real), 4))
        for optimizer in judges:
            optimizer.zero_grad()
        told = discriminator(real), discriminator(made.detach())
        judged = F.softplus(-told[0]).mean() + F.softplus(told[1]).mean()
        judged.backward()
        for optimizer in judges:
            optimizer.step()
        for optimizer in makes:
            optimizer.zero_grad()
        fooled = F.softplus(-discriminator(made)).mean()
        fooled.backward()
        for optimizer in makes:
            optimizer.step()
        return judged.detach(), fooled.detach()

    return t.twin((*makes, *judges), step)


STATES = (
    Feature("average by hand", _average_by_hand),
    Feature("AveragedModel", _averaged_model, captures=None, eager_calls=None),
    Feature("moving average", _moving_average, captures=None, eager_calls=None),
    Feature("teacher", _teacher, partial=True),
    Feature("trainer object", _trainer),
    Feature("noise by hand", _noise_by_hand),
    Feature("two players", _two_players, pair=True),
)
