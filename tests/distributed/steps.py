"""What the tests compare: a step, compiled and in eager mode, from equal beginnings."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

import dovetail
from dovetail.frontends.statistics import Stats


@dataclass
class Trained:
    """A step with what it trains."""

    step: Callable[..., Any]
    model: nn.Module
    optimizer: torch.optim.Optimizer


def optimizer_of(name: str, model: nn.Module) -> torch.optim.Optimizer:
    """AdamW, or SGD with momentum."""
    if name == "adamw":
        return torch.optim.AdamW(model.parameters(), lr=0.05)
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def state_of(trained: Trained) -> list[Any]:
    """All that a step leaves: weights, buffers, gradients with their strides, the optimizer's state."""
    tensors = [*trained.model.parameters(), *trained.model.buffers()]
    gradients = [_parts_of(p.grad) for p in trained.model.parameters()]
    held = trained.optimizer.state_dict()["state"]
    moments = [(key, name, _parts_of(held[key][name])) for key in sorted(held) for name in sorted(held[key])]
    return [list(map(_parts_of, tensors)), gradients, moments]


def _parts_of(item: Any) -> Any:
    """A copy of a tensor, with what else can be seen of it; of a `DTensor`, of the part that this process holds."""
    if isinstance(item, DTensor):
        spread = (str(item.placements), item.device_mesh.shape, item.shape, item.stride(), item.requires_grad)
        return (*spread, _parts_of(item.to_local()))
    return (item.stride(), item.detach().clone()) if isinstance(item, torch.Tensor) else item


def same(a: Any, b: Any) -> bool:
    """Whether two results, or states, are equal bit by bit."""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and a.stride() == b.stride() and bool(a.equal(b))
    if isinstance(a, list | tuple):
        return isinstance(b, list | tuple) and len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


def run(step: Callable[..., Any], trained: Trained, batches: Sequence[Any], seed: int) -> list[Any]:
    """Results, states and the generator after each call."""
    torch.manual_seed(seed)
    found = []
    for batch in batches:
        result = step(*batch)
        found.append((result, state_of(trained), torch.get_rng_state()))
    return copy.deepcopy(found)


def compare(make: Callable[[], Trained], batches: Sequence[Any], seed: int, **options: Any) -> Stats:
    """Run a step both ways. make: gives equal ones. Raises: AssertionError where they differ."""
    eager, other = make(), make()
    compiled = dovetail.compile_step(other.step, **options)
    expected = run(eager.step, eager, batches, seed)
    found = run(compiled, other, batches, seed)
    for number, (a, b) in enumerate(zip(found, expected, strict=True)):
        for what, x, y in zip(("results", "state", "generator"), a, b, strict=True):
            assert same(x, y), f"call {number}: {what} differ"
    return compiled.stats
