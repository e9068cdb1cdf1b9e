"""Torch's rules for taking operators apart, for those who ask for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch._decomp import get_decompositions

from dovetail.torch_compat.dispatch import DispatchMode, Overload
from dovetail.torch_compat.subclasses import is_wrapper_type

Decompositions = Mapping[Overload, Callable[..., Any]]
_PACKET = torch._ops.OpOverloadPacket


def decompositions_of(operators: Iterable[object]) -> dict[Overload, Callable[..., Any]]:
    """Torch's rules for these operators; a packet (`torch.ops.aten.add`) stands for all its overloads."""
    return dict(get_decompositions(list(operators)))  # type: ignore[arg-type]


def by_overload(table: Mapping[Any, Callable[..., Any]]) -> dict[Overload, Callable[..., Any]]:
    """The table with an entry for each overload in place of packets."""
    found: dict[Overload, Callable[..., Any]] = {}
    for key, rule in table.items():
        names = key.overloads() if isinstance(key, _PACKET) else ()
        found.update({getattr(key, name): rule for name in names} if isinstance(key, _PACKET) else {key: rule})
    return found


class TakenApart(DispatchMode):
    """While active, operators in the table run by their rules; operators inside a rule, too."""

    supports_higher_order_operators = True

    def __init__(self, table: Decompositions) -> None:
        super().__init__()
        self._table = table

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(map(is_wrapper_type, types)):
            return NotImplemented  # its own class takes it to plain tensors, which come here
        rule = self._table.get(func)
        if rule is not None:
            with self:
                result = rule(*args, **(kwargs or {}))
            if result is not NotImplemented:
                return result
        return func(*args, **(kwargs or {}))
