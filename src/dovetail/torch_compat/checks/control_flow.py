"""Checks of `torch_compat.control_flow`."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from dovetail.torch_compat import control_flow, dispatch, fakes
from dovetail.torch_compat.checks.difference import first_difference


class _Seen(dispatch.DispatchMode):
    """Notes the names of the operators that arrive."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.name().removeprefix("aten::"))
        return func(*args, **(kwargs or {}))


def check_traced_apart() -> str | None:
    """A mode sees a scan with gradients as one operator forward and one backward, and nothing of how it is made."""
    seen = _Seen()
    with warnings.catch_warnings(), control_flow.traced_apart(), fakes.new_fake_mode(), torch.enable_grad():
        warnings.simplefilter("ignore")  # torch's partitioner imports much, some of it deprecated
        rows = torch.ones(4, 2, requires_grad=True)
        with seen:
            carry, items = torch.ops.higher_order.scan(lambda c, r: (c * r, c + r), [rows[0]], [rows], ())
            torch.autograd.grad(carry.sum() + items.sum(), rows)
    return first_difference(
        ("how many scans a mode sees", seen.names.count("scan"), 2),
        ("whether it sees the step", "mul.Tensor" in seen.names, False),
    )


CHECKS = (check_traced_apart,)
