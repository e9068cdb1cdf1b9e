"""Whole training steps, as users write them, and the ways of running them that are measured.

A step clears the gradients, runs the model, its backward and, if asked, clipping of the gradients' norm, and updates
with AdamW. All ways start from the same weights and, for each measurement, from the same random numbers.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import dovetail
from benchmarks.measure import EAGER, compile_for
from benchmarks.models import Workload, build_workload, loss_of
from dovetail.errors import MemoryLimitTooLow
from dovetail.inspect.memory import measure_peak

HOOKS = "eager + hooks"
DOVETAIL = "dovetail"
INDUCTOR = "inductor"
CHECKPOINT = "eager + checkpoint"
BUDGETS = {"aot_eager budget 0": 0.0, "aot_eager budget 0.5": 0.5}
HALF = "dovetail half"
LOWEST = "dovetail lowest"
FAST = "dovetail fast"
ARENA = "dovetail arena"
JAX = "jax.jit"
JAX_CHECKPOINT = "jax.jit + checkpoint"
WAYS = (EAGER, HOOKS, CHECKPOINT, *BUDGETS, DOVETAIL, HALF, LOWEST, FAST, INDUCTOR, JAX, JAX_CHECKPOINT)
"""hooks: each parameter has an optimizer of its own, which steps in backward as soon as the gradient is complete.
checkpoint: each layer of the model within `torch.utils.checkpoint`. budget: eager's operators behind AOTAutograd's
partitioner, with `activation_memory_budget` at that. half, lowest: limits of half of eager's peak, and of the lowest
that is found. fast: `numerics="fast"`, whose results differ by rounding.
inductor: `torch.compile` of the model; backward and optimizer are those of eager. jax.jit: a network of the same shapes
in JAX, with donated weights (`benchmarks/jax_worker.py`), and with each layer in `jax.checkpoint`."""
_PARTITIONED = "aot_eager_decomp_partition"

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
    way: str,
    model: str,
    *,
    clip: bool = False,
    log: Callable[[Any], None] | None = None,
    device: str = "cpu",
) -> TrainingStep:
    """Build the model and its step.

    Args:
        way: one of `WAYS`.
        model: a name of `benchmarks.models.MODELS`.
        clip: whether the norm of all gradients is clipped.
        log: called in the step with the loss as a number; a host call, for dovetail.
        device: where the weights and inputs are.

    Raises:
        ValueError: clipping with hooks, which have no moment at which all gradients are there.
    """
    workload = build_workload(model, device, SEED)
    if way == HOOKS:
        if clip:
            raise ValueError("clipping needs all gradients at once, and hooks give each one up as soon as it is there")
        plain = _hooked_step(workload.model)
    else:
        plain = usual_step(workload.model, _forward(way, workload.model), clip=clip, log=log)[0]
    options = _options(way, model, clip, device)
    run = plain if options is None else dovetail.compile_step(plain, keep_grads=False, **options)
    return TrainingStep(workload, run, plain)


def _forward(way: str, model: nn.Module) -> Callable[..., Any]:
    """The model as a way runs it."""
    if way == CHECKPOINT:
        _checkpoint_layers(model)
    if way in BUDGETS:
        importlib.import_module("torch._functorch.config").activation_memory_budget = BUDGETS[way]  # of this process
        return compile_for(_PARTITIONED, model)
    return compile_for(INDUCTOR, model) if way == INDUCTOR else model


def _checkpoint_layers(model: nn.Module) -> None:
    """Let each layer of the longest list of layers run again in backward."""
    lists = [found for found in model.modules() if isinstance(found, nn.ModuleList | nn.Sequential)]
    for layer in max(lists, key=len, default=()):
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)


def _options(way: str, model: str, clip: bool, device: str) -> dict[str, Any] | None:
    """The options of dovetail; None for other ways. Limits are found with a model of their own."""
    if way in (HALF, LOWEST):
        workload = build_workload(model, device, SEED)
        step, _ = usual_step(workload.model, clip=clip)
        for _ in range(2):
            step(workload.inputs)
        eager = measure_peak(step, workload.inputs, device=device).peak_bytes
        return {"memory_limit": f"transient:{eager // 2 if way == HALF else _lowest(step, workload)}B"}
    return {DOVETAIL: {}, ARENA: {"arena": True}, FAST: {"numerics": "fast"}}.get(way)


def _lowest(step: Step, workload: Workload) -> int:
    compiled = dovetail.compile_step(step, keep_grads=False, memory_limit="transient:1B")
    try:
        for _ in range(2):
            compiled(workload.inputs)
    except MemoryLimitTooLow as error:
        return int(str(error.facts["floor_bytes"]))
    return 1


def usual_step(
    model: nn.Module,
    forward: Callable[..., Any] | None = None,
    *,
    clip: bool = False,
    log: Callable[[Any], None] | None = None,
) -> tuple[Step, torch.optim.Optimizer]:
    """A training step of a model as users write it, and its optimizer. forward: what runs the model; itself if None."""
    forward = model if forward is None else forward
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

    return step, optimizer


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
