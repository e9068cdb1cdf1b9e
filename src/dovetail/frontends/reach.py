"""What the target of a compilation reaches: Python values, and the places where modules hold tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dovetail.capture.module_state import TensorSlot, tensor_slots
from dovetail.capture.python_state import PythonState, without_modes
from dovetail.errors import DoubleBackwardUnsupported
from dovetail.execute.second_order import HINT


@dataclass(frozen=True, slots=True)
class Reach:
    """What the target reaches. slots: where the modules among that hold tensors."""

    state: PythonState
    slots: list[TensorSlot]

    @staticmethod
    def of(target: Callable[..., Any]) -> Reach:
        """Look at what can be reached now."""
        state = PythonState(target)
        return Reach(state, tensor_slots(state.modules))

    def refuse_changes(self, snapshot: tuple[object, ...]) -> None:
        """Raise when a Python value has changed since a snapshot, so that running the code again is another program.

        Raises: DoubleBackwardUnsupported.
        """
        if without_modes(self.state.snapshot()) != without_modes(snapshot):
            raise DoubleBackwardUnsupported(reason="a Python value that it reads has changed since", hint=HINT)

    def is_same_as(self, other: Reach) -> bool:
        """Whether both reach the same objects, and tensors in the same places."""
        return self.state.reached == other.state.reached and self.slots == other.slots
