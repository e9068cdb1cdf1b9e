"""Calls that look like an earlier one, run without binding their arguments again.

What a call was bound to, and which program it took, depends on how its arguments are spelled, on what they look like
(class, dtype, device, shape, strides, and so on) and on the values of those that are no tensors. Two calls that agree
in all of that are one call with other numbers. Only arguments that are plain tensors, numbers, strings or None are
looked at; all other calls, and those whose inputs are written or lie otherwise, go the long way.

Cost: about a microsecond for each tensor, in place of about fifteen for each call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dovetail.frontends.freezing.variant import RunnableVariant
from dovetail.torch_compat.autograd import transform_is_active
from dovetail.torch_compat.modes import function_mode_is_active

_PLAIN = frozenset({int, bool, str, type(None)})
_TENSORS = frozenset({torch.Tensor, torch.nn.Parameter})
_MOST = 64


@dataclass(frozen=True, slots=True)
class _Known:
    """A call that was made: the program that it took, and which of its arguments are that program's."""

    variant: RunnableVariant
    places: tuple[int, ...]


class QuickCalls:
    """The calls of one method that were made lately, at most a few dozen."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], _Known] = {}

    def find(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[RunnableVariant, list[torch.Tensor]] | None:
        """The program for a call and its inputs as it wants them; None when the call must go the long way."""
        key = _key_of(args, kwargs)
        known = self._known.get(key) if key is not None else None
        if known is None:
            return None
        items = [*args, *kwargs.values()] if kwargs else args
        return known.variant, [items[place] for place in known.places]

    def remember(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], variant: RunnableVariant, inputs: Sequence[Any]
    ) -> None:
        """Note a call that went the long way. inputs: those of the program, as the caller gave them."""
        tensors = [(place, x) for place, x in enumerate([*args, *kwargs.values()]) if isinstance(x, torch.Tensor)]
        by_identity = {id(tensor): place for place, tensor in tensors}
        if len(by_identity) < len(tensors) or any(id(tensor) not in by_identity for tensor in inputs):
            return  # one tensor twice, or one that is no argument by itself: which is which cannot be told
        key = _key_of(args, kwargs)
        if key is None:
            return
        if len(self._known) >= _MOST:
            self._known.clear()
        self._known[key] = _Known(variant, tuple(by_identity[id(tensor)] for tensor in inputs))


def _key_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[object, ...] | None:
    """What a call looks like; None where a look is not enough, or where gradients or transforms concern it."""
    if transform_is_active() or function_mode_is_active():
        return None
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        return None
    follows = torch.is_grad_enabled()
    found: list[object] = [len(args), *kwargs] if kwargs else [len(args)]
    for item in (*args, *kwargs.values()) if kwargs else args:
        cls = type(item)
        if cls in _TENSORS:
            if item.layout is not torch.strided or item.is_conj() or item.is_neg() or (follows and item.requires_grad):
                return None
            found += (item.shape, item.stride(), item.dtype, item.device)
        elif cls in _PLAIN:
            found += (cls, item)
        else:
            return None
    return tuple(found)
