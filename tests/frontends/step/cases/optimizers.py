"""Every optimizer of torch.optim that works on the CPU and takes no closure, in each of its implementations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn, optim

Optimizers = tuple[optim.Optimizer, ...]
Parameters = Sequence[nn.Parameter]


@dataclass(frozen=True)
class Recipe:
    """How parameters get their optimizers. branches: its steps branch on numbers, so that several programs are due.

    begins_in_eager_mode: the first call divides by a number that only a run tells.
    """

    name: str
    build: Callable[[Parameters], Optimizers]
    branches: bool = False
    begins_in_eager_mode: bool = False

    def __str__(self) -> str:
        return self.name


def _one(kind: Callable[..., optim.Optimizer], parameters: Parameters, **options: Any) -> Optimizers:
    return (kind(list(parameters), **options),)


def _groups(parameters: Parameters, **options: Any) -> Optimizers:
    """Matrices decay, and the rest does not; the first parameter has a group and a pace of its own."""
    first, *others = parameters
    matrices = [p for p in others if p.ndim >= 2]
    rest = [p for p in others if p.ndim < 2]
    groups: list[dict[str, Any]] = [{"params": [first], "lr": 0.02}]
    groups += [{"params": matrices, "weight_decay": 0.1}] if matrices else []
    groups += [{"params": rest, "weight_decay": 0.0, "betas": (0.8, 0.95)}] if rest else []
    return (optim.AdamW(groups, lr=0.01, **options),)


def _muon(parameters: Parameters) -> Optimizers:
    """Muon takes matrices only; AdamW takes the rest."""
    matrices = [p for p in parameters if p.ndim == 2]
    rest = [p for p in parameters if p.ndim != 2]
    made: list[optim.Optimizer] = [optim.Muon(matrices, lr=0.02, ns_steps=2)] if matrices else []
    made += [optim.AdamW(rest, lr=0.01)] if rest else []
    return tuple(made)


def _tensor_lr(parameters: Parameters, **options: Any) -> Optimizers:
    return (optim.Adam(list(parameters), lr=torch.tensor(0.01), **options),)


@dataclass(frozen=True)
class _Kind:
    make: Callable[..., optim.Optimizer]
    options: dict[str, Any]
    fused: bool = False
    branches: bool = False


_KINDS = {
    "SGD": _Kind(optim.SGD, {"lr": 0.05}, fused=True),
    "SGD nesterov": _Kind(optim.SGD, {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}, fused=True),
    "Adam": _Kind(optim.Adam, {"lr": 0.01, "weight_decay": 0.01}, fused=True),
    "AdamW": _Kind(optim.AdamW, {"lr": 0.01}, fused=True),
    "AMSGrad": _Kind(optim.Adam, {"lr": 0.01, "amsgrad": True}, fused=True),
    "RAdam": _Kind(optim.RAdam, {"lr": 0.01, "weight_decay": 0.01, "decoupled_weight_decay": True}, branches=True),
    "NAdam": _Kind(optim.NAdam, {"lr": 0.01}),
    "Adagrad": _Kind(optim.Adagrad, {"lr": 0.05, "lr_decay": 0.01}, fused=True),
    "Adadelta": _Kind(optim.Adadelta, {"lr": 0.5}),
    "Adamax": _Kind(optim.Adamax, {"lr": 0.01}),
    "RMSprop": _Kind(optim.RMSprop, {"lr": 0.005, "centered": True, "momentum": 0.9}),
    "Rprop": _Kind(optim.Rprop, {"lr": 0.01}),
    "Adafactor": _Kind(optim.Adafactor, {"lr": 0.05}, branches=True),
    "ASGD": _Kind(optim.ASGD, {"lr": 0.05, "t0": 5.0}, branches=True),
}


def _recipes() -> list[Recipe]:
    found = []
    for name, kind in _KINDS.items():
        implementations = {"loop": {"foreach": False}, "foreach": {"foreach": True}}
        if kind.fused:
            implementations["fused"] = {"fused": True}
        for label, option in implementations.items():
            build = partial(_one, kind.make, **kind.options, **option)
            begins = (name, label) == ("NAdam", "foreach")
            found.append(Recipe(f"{name} {label}", build, kind.branches, begins))
    return found


OPTIMIZERS = (
    *_recipes(),
    Recipe("SGD maximize", partial(_one, optim.SGD, lr=0.01, momentum=0.9, dampening=0.1, maximize=True)),
    Recipe("AdamW with what torch chooses", partial(_one, optim.AdamW, lr=0.01)),
    Recipe("AdamW groups", _groups),
    Recipe("AdamW groups foreach", partial(_groups, foreach=True)),
    Recipe("Adam tensor lr", partial(_tensor_lr, foreach=False)),
    Recipe("Adam tensor lr fused", partial(_tensor_lr, fused=True)),
    Recipe("Muon and AdamW", _muon),
)
