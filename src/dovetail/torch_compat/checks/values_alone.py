"""Checks of `torch_compat.values_alone`."""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from dovetail.torch_compat.checks.difference import first_difference
from dovetail.torch_compat.values_alone import WithoutVectors


class _Seen(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.asked: list[bool] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if func is torch.ops.aten._linalg_svd.default:
            self.asked.append((kwargs or {}).get("compute_uv", args[2] if len(args) > 2 else True))
        return func(*args, **(kwargs or {}))


def check_values_without_vectors() -> str | None:
    """Vectors are left out where no gradient is wanted, and computed where one is; without the mode always."""
    with FakeTensorMode(), _Seen() as seen:
        plain, leaf = (torch.empty(3, 4, device="cpu", requires_grad=wanted) for wanted in (False, True))
        torch.linalg.svdvals(plain)
        with WithoutVectors():
            torch.linalg.matrix_norm(plain, "nuc")
            torch.linalg.svdvals(leaf)
    return first_difference(("whether vectors are asked for", seen.asked, [True, False, True]))


CHECKS = (check_values_without_vectors,)
