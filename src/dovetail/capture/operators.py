"""Small questions about an operator that is being recorded."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from dovetail.capture.origins import OriginTracker
from dovetail.errors import UnsupportedTensor
from dovetail.ir.prim import Prim
from dovetail.ir.program import Target
from dovetail.torch_compat.dispatch import Overload, schema_of
from dovetail.torch_compat.fakes import is_fake
from dovetail.torch_compat.subclasses import is_wrapper, take_apart


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


def refuse_leaves(args: Sequence[object], known: Collection[int], origins: OriginTracker) -> None:
    """A wrapper that the function closes over gets no gradient: only its parts are met. known: tensors, by identity.

    Raises: UnsupportedTensor.
    """
    for arg in args:
        if not isinstance(arg, torch.Tensor) or id(arg) in known or not (arg.requires_grad and arg.is_leaf):
            continue
        if is_wrapper(arg) and not any(map(is_fake, take_apart(arg)[0])):
            raise UnsupportedTensor(
                name="a tensor that the function closes over",
                kind=f"a {type(arg).__name__} that requires a gradient",
                hint="make it an argument, or a parameter of the module that is compiled",
                origin=origins.here(),
            )
