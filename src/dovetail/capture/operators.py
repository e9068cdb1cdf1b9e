"""Small questions about an operator that is being recorded."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dovetail.ir.prim import Prim
from dovetail.ir.program import Target
from dovetail.torch_compat.dispatch import Overload, schema_of


def short_name(target: Target) -> str:
    """What its results are named after."""
    return (
        target.name if isinstance(target, Prim) else schema_of(target).name if isinstance(target, Overload) else "call"
    )


def device_type(args: Sequence[object]) -> str:
    """The kind of device of the first tensor among an operator's arguments; the CPU when there is none."""
    return next((a.device.type for a in args if isinstance(a, torch.Tensor)), "cpu")


def must_be_kept(target: Target) -> bool:
    """Whether it is recorded although it has no results."""
    if isinstance(target, Prim):
        return target.effect
    return isinstance(target, Overload) and (schema_of(target).is_mutable or not schema_of(target).returns)
