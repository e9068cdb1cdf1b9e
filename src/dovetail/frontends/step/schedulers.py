"""Schedulers of learning rates while a step is recorded, and what they hold."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

_CLASS: Any = object.__dict__["__class__"]
_ASKED_FOR_ANYWAY = frozenset({"step", "optimizer"})


@contextlib.contextmanager
def watched_reads(scheduler: Any, tell: Callable[[Any, str, str], Any]) -> Iterator[None]:
    """While active, `tell` answers for each attribute of a scheduler's own that this thread asks for.

    It gets the name of the attribute, and that of the method that asks, if it is one, or the attribute's again.
    """
    kind: Any = type(scheduler)
    thread, held = threading.get_ident(), scheduler.__dict__
    method = ""

    def get(self: Any, name: str) -> Any:
        nonlocal method
        if self is scheduler and name not in _ASKED_FOR_ANYWAY and threading.get_ident() == thread:
            if name in held:
                asked, method = method or name, ""
                return tell(self, name, asked)
            method = name if hasattr(kind, name) else ""
        return kind.__getattribute__(self, name)

    methods = {"__getattribute__": get, "__class__": property(lambda _: kind), "tells_class": True}
    scheduler.__class__ = type(kind.__name__, (kind,), methods | {"__module__": kind.__module__})
    try:
        yield
    finally:
        _CLASS.__set__(scheduler, kind)


def held_rates(scheduler: Any) -> list[Any] | None:
    """The rates that a scheduler holds; None where these are no plain numbers."""
    held = vars(scheduler).get("_last_lr")
    return held if type(held) is list and all(type(rate) is float for rate in held) else None


class HeldRates:
    """Asks whether a scheduler holds so many rates, as plain numbers, and gives them."""

    def __init__(self, scheduler: Any, count: int) -> None:
        self._scheduler, self._count = scheduler, count

    def __call__(self) -> bool:
        return len(held_rates(self._scheduler) or ()) == self._count

    def rate(self, which: int) -> Any:
        """One of them; None where there are not so many."""
        return (held_rates(self._scheduler) or ())[which] if self() else None

    def __repr__(self) -> str:
        return f"the rates that a {type(self._scheduler).__name__} holds"


class SchedulerState:
    """What schedulers and the groups of their optimizers hold, to be put back."""

    def __init__(self, schedulers: Sequence[Any]) -> None:
        """Remember what these hold now."""
        self._held: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self._lists: list[tuple[list[Any], list[Any]]] = []
        self._tensors: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._seen: set[int] = set()
        for scheduler in schedulers:
            self._add(scheduler)

    def _add(self, scheduler: Any) -> None:
        if id(scheduler) in self._seen:
            return
        self._seen.add(id(scheduler))
        self._held.append((scheduler.__dict__, dict(scheduler.__dict__)))
        for value in scheduler.__dict__.values():
            if isinstance(value, list):
                self._lists.append((value, list(value)))
                for item in value:
                    if hasattr(item, "step") and hasattr(item, "last_epoch"):
                        self._add(item)
        for group in getattr(getattr(scheduler, "optimizer", None), "param_groups", ()):
            self._held.append((group, dict(group)))
            self._tensors += [(v, v.detach().clone()) for k, v in group.items() if isinstance(v, torch.Tensor)]

    def put_back(self) -> None:
        """Hold again what was held."""
        for held, before in self._held:
            held.clear()
            held.update(before)
        for items, former in self._lists:
            items[:] = former
        with torch.no_grad():
            for tensor, numbers in self._tensors:
                tensor.copy_(numbers)
