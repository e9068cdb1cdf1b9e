"""What the target of a compilation reaches: Python values, and the places where modules hold tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from dovetail.capture.module_state import TensorSlot, tensor_slots
from dovetail.capture.python_state import PythonState, leads_on


@dataclass(frozen=True, slots=True, eq=False)
class Reach:
    """What the target reaches. slots: where the modules among that hold tensors."""

    state: PythonState
    slots: list[TensorSlot]

    @staticmethod
    def of(target: Callable[..., Any], arguments: Iterable[object]) -> Reach:
        """Look at what can be reached now, from arguments as well."""
        state = PythonState(target, arguments)
        return Reach(state, tensor_slots(state.modules))

    def is_same_as(self, other: Reach) -> bool:
        """Whether both reach the same objects, and tensors in the same places."""
        return self.state.reached == other.state.reached and self.slots == other.slots


class Reaches:
    """What a target reaches, for the arguments of each call that lead on; kept as long as programs are for it."""

    def __init__(self, target: Callable[..., Any]) -> None:
        self._target = target
        self._last: dict[tuple[int, ...], Reach] = {}
        self._kept: list[Reach] = []

    def of(self, leaves: Sequence[object]) -> Reach:
        """What was reached last with such arguments."""
        arguments = [leaf for leaf in leaves if leads_on(leaf)]
        return self._last.get(tuple(map(id, arguments))) or Reach.of(self._target, arguments)

    def anew(self, leaves: Sequence[object], before: Reach) -> Reach:
        """What is reached now; it is `before` when that still holds."""
        arguments = [leaf for leaf in leaves if leads_on(leaf)]
        now = Reach.of(self._target, arguments)
        if now.is_same_as(before):
            return before
        for known in self._kept:
            if now.is_same_as(known):
                self.keep(leaves, known)
                return known
        return now

    def keep(self, leaves: Sequence[object], reach: Reach) -> None:
        """Remember what a program was recorded with."""
        self._last[tuple(map(id, filter(leads_on, leaves)))] = reach
        if reach not in self._kept:
            self._kept.append(reach)
