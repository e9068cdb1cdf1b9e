"""From a text of a recorded step to what makes it of the numbers of each run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dovetail.capture.step_recorder import StepRecorder
from dovetail.capture.step_tensors import Seen
from dovetail.capture.step_texts import Piece
from dovetail.errors import UnsupportedStep
from dovetail.ir.calling import Formatted, FromConstant, OutputRule
from dovetail.ir.program import Value
from dovetail.ops.seen import as_seen
from dovetail.torch_compat.traced_numbers import handle_of


def text_result(recorder: StepRecorder, leave: Callable[[object], int], item: object) -> Formatted | None:
    """A text with parts that the program computes; None for anything else.

    leave: see `StepRecording.leave`. Raises: UnsupportedStep.
    """
    try:
        parts = recorder.texts.parts(item)
    except LookupError:
        recorder.blame_texts()
        raise UnsupportedStep(
            what="writes numbers which it computes with formats of `%` that cannot be told apart",
            why="the numbers are not known while the step is captured",
            hint="use an f-string",
            origin=recorder.here(),
        ) from None
    if parts is None:
        return None
    return Formatted(tuple(part if isinstance(part, str) else _left(leave, part) for part in parts))


def number_result(recorder: StepRecorder, leave: Callable[[object], int], number: Any) -> OutputRule | Value:
    """A traced number. leave: see `StepRecording.leave`."""
    handle = handle_of(number)
    if (kind := recorder.of_numpy.kind_of(handle)) is not None:
        return Formatted(((leave(number), kind),))
    return handle if isinstance(handle, Value) else FromConstant(handle)


def _left(leave: Callable[[object], int], piece: Piece) -> tuple[int, Callable[[Any], str]]:
    item = piece.item
    if isinstance(item, Seen):
        return leave(item.value), lambda tensor: piece.convert(as_seen(tensor, item.look))
    return leave(item), piece.convert
