"""What steps do between the loss and the update, and how gradients come to be."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.frontends.step.cases.training import Feature, Training
from tests.frontends.step.twins import Call, Twin

Batch = dict[str, Tensor]
_OVERFLOWS = (5, 11)


def _plain(t: Training) -> Twin:
    model, optimizers = t.model, t.optimizers()

    def step(batch: Batch) -> Tensor:
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = model(**batch)["loss"]
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        return loss

    return t.twin(optimizers, step)


def _numbers(t: Training) -> Twin:
    model, optimizers = t.model, t.optimizers()

    def step(batch: Batch) -> dict[str, Any]:
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = model(**batch)["loss"]
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        value = loss.item()
        return {"loss": value, "percent": (100 * value, "%"), "count": len(batch), "tensor": loss.detach()}

    return t.twin(optimizers, step)


def _clip_norm(t: Training) -> Twin:
    model, optimizers = t.model, t.optimizers()

    def step(batch: Batch) -> tuple[Tensor, Tensor]:
        loss = model(**batch)["loss"]
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        for optimizer in optimizers:
            optimizer.step()
        return loss.detach(), norm

    return t.twin(optimizers, step)


def _clip_value(t: Training) -> Twin:
    model, optimizers = t.model, t.optimizers()

    def step(batch: Batch) -> Tensor:
        model.zero_grad()
        loss = model(**batch)["loss"]
        loss.backward()
        nn.utils.clip_grad_value_(model.parameters(), 0.02)
        for optimizer in optimizers:
            optimizer.step()
        return loss

    return t.twin(optimizers, step)


def _zeros_stay(t: Training) -> Twin:
    """Gradients are filled with zeros instead of being dropped."""
    model, optimizers = t.model, t.optimizers()

    def step(batch: Batch) -> Tensor:
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=False)
        loss = model(**batch)["loss"]
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        return loss

    return t.twin(optimizers, step)


def _accumulate_by_argument(t: Training) -> Twin:
    model, optimizers = t.model, t.optimizers()

    def step(batch: Batch, update: bool) -> Tensor:
        loss = model(**batch)["loss"] / 2
        loss.backward()
        if update:
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
        return loss

    return t.twin(optimizers, step, call=lambda k: Call((t.batch(k),), {"update": k % 2 == 1}))


def _accumulate_in_two_steps(t: Training) -> Twin:
    model, optimizers = t.model, t.optimizers()

    def collect(batch: Batch) -> Tensor:
        loss = model(**batch)["loss"] / 2
        loss.backward()
        return loss

    def update(batch: Batch) -> Tensor:
        loss = collect(batch)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        return loss

    def call(number: int) -> Call:
        return Call((t.batch(number),), step="update" if number % 2 else "collect")

    return t.twin(optimizers, call=call, steps={"collect": collect, "update": update})


def _microbatches(t: Training) -> Twin:
    model, optimizers = t.model, t.optimizers()

    def step(batches: list[Batch]) -> Tensor:
        for optimizer in optimizers:
            optimizer.zero_grad()
        total = torch.zeros(())
        for batch in batches:
            loss = model(**batch)["loss"] / len(batches)
            loss.backward()
            total += loss.detach()
        for optimizer in optimizers:
            optimizer.step()
        return total

    return t.twin(optimizers, step, call=lambda k: Call(([t.batch(k), t.batch(k + 1)],)))


def _scaler(t: Training) -> Twin:
    """Losses scaled up; in two calls they overflow, and the update is left out."""
    model, optimizers = t.model, t.optimizers()
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=2)

    def step(batch: Batch, boost: Tensor) -> Tensor:
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = model(**batch)["loss"] * boost
        scaler.scale(loss).backward()
        for optimizer in optimizers:
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()
        return loss

    def call(number: int) -> Call:
        return Call((t.batch(number), torch.tensor(torch.inf if number in _OVERFLOWS else 1.0)))

    return t.twin(optimizers, step, call=call, scalers={"scaler": scaler})


def _skipped_when_not_finite(t: Training) -> Twin:
    model, optimizers = t.model, t.optimizers()

    def step(batch: Batch, boost: Tensor) -> Tensor:
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = model(**batch)["loss"] * boost
        if torch.isfinite(loss):
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
        return loss

    def call(number: int) -> Call:
        return Call((t.batch(number), torch.tensor(torch.nan if number in _OVERFLOWS else 1.0)))

    return t.twin(optimizers, step, call=call)


def _autocast(t: Training) -> Twin:
    model, optimizers = t.model, t.optimizers()

    def step(batch: Batch) -> Tensor:
        for optimizer in optimizers:
            optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(**batch)["loss"]
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        return loss

    return t.twin(optimizers, step)


def _gradient_penalty(t: Training) -> Twin:
    model, optimizers, parameters = t.model, t.optimizers(), t.parameters

    def step(batch: Batch) -> Tensor:
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = model(**batch)["loss"]
        grads = torch.autograd.grad(loss, parameters, create_graph=True)
        total = loss + 0.1 * sum(grad.square().sum() for grad in grads)
        total.backward()
        for optimizer in optimizers:
            optimizer.step()
        return total.detach()

    return t.twin(optimizers, step)


def _optimizer_in_backward(t: Training) -> Twin:
    """Each parameter is updated by a hook as soon as its gradient is there, which is then dropped."""
    model = t.model
    of = {p: t.recipe.build([p]) for p in t.parameters}

    def update(p: Tensor) -> None:
        for optimizer in of[p]:  # type: ignore[index]
            optimizer.step()
            optimizer.zero_grad()

    for p in t.parameters:
        p.register_post_accumulate_grad_hook(update)

    def step(batch: Batch) -> Tensor:
        loss = model(**batch)["loss"]
        loss.backward()
        return loss

    return t.twin(tuple(optimizer for made in of.values() for optimizer in made), step)


def _gradients_assigned(t: Training) -> Twin:
    model, optimizers, parameters = t.model, t.optimizers(), t.parameters

    def step(batch: Batch) -> Tensor:
        loss = model(**batch)["loss"]
        grads = torch.autograd.grad(loss, parameters)
        for p, grad in zip(parameters, grads, strict=True):
            p.grad = grad.sign() * 0.1 + grad
        for optimizer in optimizers:
            optimizer.step()
        return loss

    return t.twin(optimizers, step)


def _frozen_parts(t: Training) -> Twin:
    """Every third parameter takes no gradient, though optimizers hold it."""
    for p in t.parameters[::3]:
        p.requires_grad_(False)
    return _plain(t)


def _unfreezing(t: Training) -> Twin:
    """Two parameters begin to be trained in the middle."""
    frozen = t.parameters[1:3]
    for p in frozen:
        p.requires_grad_(False)
    side = _plain(t)

    def before(number: int) -> None:
        if number == 7:
            for p in frozen:
                p.requires_grad_(True)

    side.before = before
    return side


def _gradients_kept(t: Training) -> Twin:
    return _plain(t)


def _hooks(t: Training) -> Twin:
    """Hooks change what goes forward through a module, and the gradients of two parameters."""
    first, second, *_ = t.parameters
    first.register_hook(lambda grad: grad * 0.5)

    def clamp(p: Tensor) -> None:
        assert p.grad is not None, "the hook comes after the gradient"
        p.grad.clamp_(-0.05, 0.05)

    second.register_post_accumulate_grad_hook(clamp)
    leaf = [module for module in t.model.modules() if isinstance(module, nn.Linear)]
    for module in leaf[-1:]:
        module.register_forward_hook(lambda _module, _given, out: out * 1.5)
        module.register_full_backward_hook(lambda _module, grads, _out: tuple(g if g is None else g * 2 for g in grads))
    return _plain(t)


def _sizes(t: Training) -> Twin:
    """Batches of other sizes; there are at least two rows, for batch norm."""
    side = _plain(t)

    def call(number: int) -> Call:
        batch = t.batch(number)
        return Call(({name: item[: max(2, len(item) - number % 3)] for name, item in batch.items()},))

    side.call = call
    return side


GRADIENTS = (
    Feature("plain", _plain),
    Feature("numbers", _numbers),
    Feature("clip norm", _clip_norm),
    Feature("clip value", _clip_value),
    Feature("zeros stay", _zeros_stay, captures=None),
    Feature("accumulate by an argument", _accumulate_by_argument, captures=2, eager_calls=None),
    Feature("accumulate in two steps", _accumulate_in_two_steps, captures=2, eager_calls=None),
    Feature("microbatches", _microbatches),
    Feature("scaler", _scaler, captures=None, eager_calls=None),
    Feature("skipped when not finite", _skipped_when_not_finite, captures=None, eager_calls=None),
    Feature("autocast", _autocast),
    Feature("gradient penalty", _gradient_penalty, twice=True, partial=True),
    Feature("optimizer in backward", _optimizer_in_backward),
    Feature("gradients assigned", _gradients_assigned, captures=2, partial=True),
    Feature("frozen parts", _frozen_parts),
    Feature("unfreezing", _unfreezing, captures=None, eager_calls=None),
    Feature("gradients kept", _gradients_kept, keep_grads=True),
    Feature("hooks", _hooks),
    Feature("sizes", _sizes, captures=None, eager_calls=None),
    Feature("sizes in one program", _sizes, captures=None, eager_calls=None, options={"dynamic": True}),
)
