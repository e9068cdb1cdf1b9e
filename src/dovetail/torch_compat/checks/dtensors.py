"""Checks of `torch_compat.dtensors`, with a tensor over a process group of this process alone."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from dovetail.torch_compat import dtensors
from dovetail.torch_compat.checks.collectives import group_of_one
from dovetail.torch_compat.checks.difference import first_difference


@contextmanager
def _tensor() -> Iterator[Any]:
    """A tensor that is spread over one process; None where none can be made, or nobody has asked for such tensors."""
    module = sys.modules.get("torch.distributed.tensor")
    with group_of_one() as group:
        if module is None or group is None:
            yield None
            return
        mesh = sys.modules["torch.distributed.device_mesh"].DeviceMesh("cpu", [0])
        yield module.DTensor.from_local(torch.ones(2, 3), mesh, [module.Shard(0)], run_check=False)


def check_is_dtensor() -> str | None:
    """A tensor that is spread is told from a plain one."""
    with _tensor() as tensor:
        found = tensor is None or dtensors.is_dtensor(tensor)
    return first_difference(("spread", found, True), ("plain", dtensors.is_dtensor(torch.ones(2)), False))


def check_local_of() -> str | None:
    """It is the same object each time."""
    with _tensor() as tensor:
        same = tensor is None or dtensors.local_of(tensor) is dtensors.local_of(tensor)
    return first_difference(("object", same, True))


def check_placing_of() -> str | None:
    """It is equal for a tensor that is made of another local part, and another one for other placements."""
    with _tensor() as tensor:
        if tensor is None:
            return None
        other = dtensors.with_local(tensor, torch.zeros(2, 3))
        module = sys.modules["torch.distributed.tensor"]
        whole = [module.Replicate()]
        replicated = module.DTensor.from_local(torch.ones(2, 3), tensor.device_mesh, whole, run_check=False)
        found = [dtensors.placing_of(x) == dtensors.placing_of(tensor) for x in (other, replicated)]
    return first_difference(("placings", found, [True, False]))


def check_layout_of() -> str | None:
    """A layout has one part that is a tensor."""
    with _tensor() as tensor:
        parts = [None] if tensor is None else [x for _, x in dtensors.layout_of(tensor).parts if x is None]
    return first_difference(("parts", parts, [None]))


def check_with_local() -> str | None:
    """The new tensor holds the very part, and requires no gradient."""
    with _tensor() as tensor:
        if tensor is None:
            return None
        part = torch.zeros(2, 3)
        made = dtensors.with_local(tensor.requires_grad_(), part)
        found = (type(made) is type(tensor), dtensors.local_of(made) is part, made.requires_grad, made.shape)
    return first_difference(("made", found, (True, True, False, torch.Size([2, 3]))))


def check_without_spread() -> str | None:
    """Plain tensors are left."""
    plain = torch.ones(1)
    with _tensor() as tensor:
        found = dtensors.without_spread([plain] if tensor is None else [tensor, plain])
    return first_difference(("left", len(found), 1), ("plain", found[0] is plain, True))


CHECKS = (
    check_is_dtensor,
    check_local_of,
    check_placing_of,
    check_layout_of,
    check_with_local,
    check_without_spread,
)
