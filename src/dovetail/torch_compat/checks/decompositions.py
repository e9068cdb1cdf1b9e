"""Checks of `torch_compat.decompositions`."""

from __future__ import annotations

from typing import Any

import torch

from dovetail.torch_compat import decompositions
from dovetail.torch_compat.checks.difference import first_difference
from dovetail.torch_compat.dispatch import DispatchMode

aten = torch.ops.aten


class _Seen(DispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def check_decompositions_of() -> str | None:
    """Torch has rules for the operators that the old table lists."""
    found = decompositions.decompositions_of([aten.silu_backward, aten.detach])
    return first_difference(("overloads with a rule", aten.silu_backward.default in found, True))


def check_by_overload() -> str | None:
    """A packet is replaced by its overloads."""
    found = decompositions.by_overload({aten.sin: torch.cos, aten.neg.default: abs})
    return first_difference(
        ("overloads", {aten.neg.default, aten.sin.default, aten.sin.out} <= found.keys(), True),
    )


def check_taken_apart() -> str | None:
    """An operator in the table is replaced by what its rule calls, below other modes."""
    with _Seen() as seen, decompositions.TakenApart({aten.square.default: lambda x: x * x}):
        found = aten.square.default(torch.tensor([3.0]))
    return first_difference(
        ("the result", found.tolist(), [9.0]),
        ("the operators seen below", "aten.square.default" in seen.names, False),
    )


CHECKS = (check_decompositions_of, check_by_overload, check_taken_apart)
