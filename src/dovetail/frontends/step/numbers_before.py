"""Numbers of a recorded step as they are before each run: drawn, held by Python, and computed of such numbers."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from types import BuiltinFunctionType
from typing import Any, Protocol

from dovetail.capture.numpy_numbers import is_of_numpy
from dovetail.capture.step_recorder import StepRecorder
from dovetail.frontends.step.containers import Path
from dovetail.frontends.step.drawn_values import Draw, Held, Ref
from dovetail.ir.program import Value

_PURE = (BuiltinFunctionType, type)  # functions of the module operator, and the like


class Notes(Protocol):
    """Who notes what is made before each run."""

    def remember(self, meant: Draw, result: Any) -> Ref:
        """Note it. result: what it is now."""


class NumbersBefore:
    """known: by the input that a number is, what gives it before each run."""

    def __init__(
        self,
        recorder: StepRecorder,
        places: Mapping[str, Path],
        notes: Notes,
        made: Sequence[Any],
    ) -> None:
        """places: where numbers are held that are inputs, by their names. made: before each run, as it is now."""
        self.known: dict[Value, Ref] = {}
        self._drawn: set[Value] = set()
        self._recorder = recorder
        self._places, self._made = places, made
        self._notes: Any = weakref.proxy(notes)  # which has this

    def before(self, handle: Any) -> Any:
        """What gives a number before each run, or the plain number; None where the program computes it."""
        if not isinstance(handle, Value):
            return handle
        if handle not in self.known:
            found = self._held(handle) if handle.name in self._places else self._computed(handle)
            if found is None:
                return None
            self.known[handle] = found
        return self.known[handle]

    def is_drawn(self, handle: Value) -> bool:
        """Whether a number is drawn, or computed of drawn numbers alone."""
        if handle in self.known:
            return True
        node = self._made_by(handle)
        parts = [] if node is None else [x for x in node.args if isinstance(x, Value)]
        return bool(parts) and all(map(self.is_drawn, parts))

    def _held(self, handle: Value) -> Ref:
        meant = Draw(len(self._made), Held(self._places[handle.name]), (), {})
        return self._note(meant, self._recorder.numbers_now[handle.name])

    def _computed(self, handle: Value) -> Ref | None:
        node = self._made_by(handle)
        is_pure = node is not None and (isinstance(node.target, _PURE) or is_of_numpy(node.target))
        if not is_pure or node.kwargs:
            return None
        operands = [self.before(x) for x in node.args]
        if any(x is None for x in operands):
            return None
        meant = Draw(len(self._made), node.target, tuple(operands), {})
        return self._note(Draw(len(self._made), node.target, tuple(operands), {}), meant.make([], self._made))

    def _note(self, meant: Draw, now: Any) -> Ref:
        found: Ref = self._notes.remember(meant, now)
        return found

    def _made_by(self, handle: Value) -> Any:
        return next((x for x in reversed(self._recorder.nodes) if handle in x.outputs), None)
