"""Calls that look like an earlier one, run without binding their arguments again.

What a call was bound to, and which program it took, depends on how its arguments are spelled, on what they look like
(class, dtype, device, shape, strides, and so on) and on the values of those that are not tensors. Two calls that agree
in all of that differ only in their data. Only arguments that are plain tensors, numbers, strings or None are
handled; all other calls, and those whose inputs have a different layout, take the general path.

Cost: some tenths of a microsecond for each tensor, instead of about fifteen for each call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from dovetail.frontends.freezing.call_form import same_tensors
from dovetail.frontends.freezing.variant import FrozenRunner
from dovetail.torch_compat.autograd import transform_is_active
from dovetail.torch_compat.guards import SameTensors, may_be_asked
from dovetail.torch_compat.modes import autocast_is_active, function_mode_is_active

_PLAIN = frozenset({int, bool, str, type(None)})
_TENSORS = frozenset({torch.Tensor, torch.nn.Parameter})
_MOST = 16


class _Known:
    """A call that was made: what it looked like, the program that it took, and its arguments that are the program's.

    follows: some want a gradient. places: of the program's arguments among those of the call; None for all, in order.
    """

    __slots__ = ("_again", "_count", "_names", "_others", "_same", "_surely", "_tensors", "follows", "places", "runner")

    def __init__(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], runner: FrozenRunner, places: Sequence[int]
    ) -> None:
        items = [*args, *kwargs.values()]
        self._again = same_tensors(items)
        again = {place for place, _ in self._again}
        others = [place for place, item in enumerate(items) if type(item) not in _TENSORS]
        tensors = [place for place in range(len(items)) if place not in again and place not in others]
        self.runner = runner
        self.follows = any(items[place].requires_grad for place in tensors)
        self.places = None if list(places) == list(range(len(items))) and not kwargs else tuple(places)
        self._count = len(args)
        self._names = tuple(kwargs)
        self._same = SameTensors([items[place] for place in tensors])
        self._surely = self._same.surely_are
        self._others = [(place, type(items[place]), items[place]) for place in others]
        self._tensors = tuple(tensors) if len(tensors) < len(items) or kwargs else None

    def is_like(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Whether another call looks like this one."""
        if len(args) != self._count:
            return False
        if self._tensors is None:
            return not kwargs and (self._surely(*args) or self._same.are(args))
        if tuple(kwargs) != self._names:
            return False
        items = [*args, *kwargs.values()]
        for place, cls, value in self._others:
            item = items[place]
            if type(item) is not cls or item != value:
                return False
        for place, earlier in self._again:
            if items[place] is not items[earlier]:
                return False
        return self._same.are([items[place] for place in self._tensors])


class QuickCalls:
    """The calls of one method that were made lately, at most a few. Threads may share it."""

    def __init__(self) -> None:
        self._known: tuple[_Known, ...] = ()  # replaced, never changed

    def find(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[FrozenRunner, Sequence[Any]] | None:
        """The program for a call and its inputs as it wants them; None when the call must take the general path."""
        now = self._known
        if not now or not may_be_asked(args) or (kwargs and not may_be_asked(kwargs.values())):
            return None
        known = now[0]
        if not known.is_like(args, kwargs):
            others = [other for other in now[1:] if other.is_like(args, kwargs)]
            if not others:
                return None
            known = others[0]
            self._known = (known, *[other for other in now if other is not known])  # the next call is likely like this
        if transform_is_active() or function_mode_is_active() or (known.follows and torch.is_grad_enabled()):
            return None
        if known.places is None:
            return known.runner, args
        items = [*args, *kwargs.values()] if kwargs else args
        return known.runner, [items[place] for place in known.places]

    def remember(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], runner: FrozenRunner, inputs: Sequence[Any]
    ) -> None:
        """Note a call that went the long way. inputs: those of the program, as the caller gave them."""
        items = [*args, *kwargs.values()]
        if autocast_is_active() or not all(map(_is_plain, items)):
            return
        by_identity = {id(item): place for place, item in enumerate(items) if isinstance(item, torch.Tensor)}
        if any(id(tensor) not in by_identity for tensor in inputs):
            return  # one that is not an argument by itself: which it is cannot be told
        places = [by_identity[id(tensor)] for tensor in inputs]
        self._known = (_Known(args, kwargs, runner, places), *self._known[: _MOST - 1])


def _is_plain(item: object) -> bool:
    if type(item) in _TENSORS:
        assert isinstance(item, torch.Tensor), "for the type checker"
        return item.layout is torch.strided and not item.is_conj() and not item.is_neg()
    return type(item) in _PLAIN
