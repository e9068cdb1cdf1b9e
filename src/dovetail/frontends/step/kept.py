"""What a step puts into Python objects, or hands to Python code: tensors, numbers, texts, new containers of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias

import torch

from dovetail.capture.step_recording import StepRecording
from dovetail.frontends.step.containers import Slot
from dovetail.frontends.step.reachable_state import ReachableState
from dovetail.ir.calling import Formatted, FromConstant, FromLeft, FromOutput, WithLook
from dovetail.ops.seen import as_seen
from dovetail.reach.values import CONTAINERS, LOOKED_INTO, PLAIN, Kind, is_a, kind_of
from dovetail.torch_compat.traced_numbers import is_traced


@dataclass(frozen=True, slots=True)
class New:
    """A container that each run makes. keys: of a dictionary. number: equal for what is one object."""

    kind: type
    parts: tuple[Tree, ...]
    keys: tuple[Any, ...]
    number: int


Tree: TypeAlias = "FromConstant | FromOutput | FromLeft | WithLook | Formatted | New"


@dataclass(slots=True)
class Handed:
    """What one run hands out. results, left: see `CallPlan`. made: new containers that were made already, by number."""

    results: Sequence[Any] = ()
    left: Sequence[Any] = ()
    made: dict[int, Any] = field(default_factory=dict)


_MOVED = CONTAINERS | LOOKED_INTO


class NotMadeAgain(Exception):
    """A value has a part of which a run makes no other."""


class Trees:
    """Takes values of one recording apart.

    are_moved: whether each call leaves new containers where it finds some: then an object that was there before is the
    same one in no later call.
    """

    def __init__(self, recording: StepRecording, is_known: Callable[[Any], bool]) -> None:
        """is_known: whether an object was there before the step."""
        self.are_moved = False
        self._recording = recording
        self._is_known = is_known
        self._made: dict[int, New] = {}
        self._left: dict[int, FromOutput] = {}
        self._alive: list[Any] = []

    def of(self, value: Any) -> Tree:
        """How a run makes a value. Raises: NotMadeAgain; DovetailError for a tensor that cannot be handed out."""
        self._alive.append(value)
        if isinstance(value, torch.Tensor) or is_traced(value) or self._recording.is_text(value):
            if id(value) not in self._left:
                self._left[id(value)] = FromOutput(self._recording.keep(value))
            return self._left[id(value)]
        kind = type(value)
        is_plain = kind in PLAIN or kind_of(kind) is Kind.PLAIN or isinstance(value, Enum)
        if not is_plain and self.are_moved and kind_of(kind) in _MOVED and self._is_known(value):
            raise NotMadeAgain
        if is_plain or self._is_known(value):
            return FromConstant(value)
        if id(value) in self._made:
            return self._made[id(value)]
        if kind in (list, dict) or is_a(value, tuple):
            items = list(value.values()) if kind is dict else list(value)
            keys = tuple(value) if kind is dict else ()
            if any(is_traced(key) or isinstance(key, torch.Tensor) or self._recording.is_text(key) for key in keys):
                raise NotMadeAgain
            made = New(kind, tuple(map(self.of, items)), keys, len(self._made))
            self._made[id(value)] = made
            return made
        raise NotMadeAgain


def grown(tree: Tree, run: Handed) -> Any:
    """The value of one run."""
    if isinstance(tree, FromConstant):
        return tree.value
    if isinstance(tree, FromOutput):
        return run.results[tree.output]
    if isinstance(tree, FromLeft):
        return run.left[tree.left]
    if isinstance(tree, WithLook):
        assert isinstance(tree.of, FromLeft), "results have their looks already"
        return as_seen(run.left[tree.of.left], tree.look)
    if isinstance(tree, Formatted):
        return tree.made(run.left)
    if tree.number not in run.made:
        parts = [grown(part, run) for part in tree.parts]
        if tree.kind is dict:
            run.made[tree.number] = dict(zip(tree.keys, parts, strict=True))
        else:
            run.made[tree.number] = parts if tree.kind is list else _tuple_of(tree.kind, parts)
    return run.made[tree.number]


def _tuple_of(kind: Any, parts: list[Any]) -> Any:
    """A tuple of a class; of the user's, without running a `__new__`."""
    return kind(parts) if kind is torch.Size else tuple.__new__(kind, parts)


def refill(container: Any, held: Any) -> None:
    """Let a list, a deque or a dictionary hold something else."""
    container.clear()
    if isinstance(container, dict):
        container.update(held)
    else:
        container.extend(held)


def slots_of_graphs(reachable: ReachableState) -> list[Slot]:
    """The slots of tensors that are part of graphs from before: a step may put others there, and uses none of them."""
    if not any(_has_graph(tensor) for _, tensor in reachable.tensors):
        return []
    return [slot for slot in reachable.slots if _has_graph(slot.read())]


def _has_graph(item: Any) -> bool:
    return isinstance(item, torch.Tensor) and item.requires_grad and not item.is_leaf
