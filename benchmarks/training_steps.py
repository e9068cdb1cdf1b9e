"""Whole training steps, as users write them, and the ways of running them that are measured.

A step clears the gradients, runs the model, its backward and, if asked, clipping of the gradients' norm, and updates
with AdamW. All ways start from the same weights and, for each measurement, from the same random numbers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import dovetail
from benchmarks.measure import EAGER, compile_for
from benchmarks.models import Workload, build_workload, loss_of

HOOKS = "eager + hooks"
DOVETAIL = "dovetail"
INDUCTOR = "inductor"
WAYS = (EAGER, HOOKS, DOVETAIL, INDUCTOR)
"""hooks: each parameter has an optimizer of its own, which steps in backward as soon as the gradient is complete.
inductor: `torch.compile` of the model; backward and optimizer are those of eager."""

_RATE = 1e-4
_CLIP = 1.0
SEED = 0

Step = Callable[[dict[str, Tensor]], Tensor]


@dataclass(frozen=True, slots=True)
class TrainingStep:
    """One way of training a workload. run: what a training loop calls. plain: the function that it was made from."""

    workload: Workload
    run: Step
    plain: Step

    def __call__(self) -> Tensor:
        return self.run(self.workload.inputs)

    def digest(self) -> str:
        """A hash of every bit of the parameters and buffers."""
        found = hashlib.sha256()
        for tensor in self.workload.model.state_dict().values():
            found.update(tensor.detach().cpu().contiguous().numpy().tobytes())
        return found.hexdigest()


def make_training_step(
    way: str, model: str, *, clip: bool = False, log: Callable[[Any], None] | None = None
) -> TrainingStep:
    """Build the model and its step.

    Args:
        way: one of `WAYS`.
        model: a name of `benchmarks.models.MODELS`.
        clip: whether the norm of all gradients is clipped.
        log: called in the step with the loss as a number; a host call, for dovetail.

    Raises:
        ValueError: clipping with hooks, which have no moment at which all gradients are there.
    """
    workload = build_workload(model, "cpu", SEED)
    if way == HOOKS:
        if clip:
            raise ValueError("clipping needs all gradients at once, and hooks give each one up as soon as it is there")
        plain = _hooked_step(workload.model)
    else:
        forward = compile_for(INDUCTOR, workload.model) if way == INDUCTOR else workload.model
        plain = _usual_step(workload.model, forward, clip, log)
    return TrainingStep(workload, _compiled(plain) if way == DOVETAIL else plain, plain)


def _compiled(step: Step) -> Step:
    return dovetail.compile_step(step, keep_grads=False)


def _usual_step(model: nn.Module, forward: Callable[..., Any], clip: bool, log: Callable[[Any], None] | None) -> Step:
    optimizer = torch.optim.AdamW(model.parameters(), lr=_RATE)

    def step(inputs: dict[str, Tensor]) -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(forward(**inputs))
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), _CLIP)
        optimizer.step()
        if log is not None:
            log(loss.item())
        return loss.detach()

    return step


def _hooked_step(model: nn.Module) -> Step:
    optimizers = {parameter: torch.optim.AdamW([parameter], lr=_RATE) for parameter in model.parameters()}

    def update(parameter: Tensor) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in optimizers:
        parameter.register_post_accumulate_grad_hook(update)

    def step(inputs: dict[str, Tensor]) -> Tensor:
        loss = loss_of(model(**inputs))
        loss.backward()
        return loss.detach()

    return step
