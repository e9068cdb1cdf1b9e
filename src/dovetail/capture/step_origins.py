"""Which line of the user's made a value of a recorded step, or wrote it."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.capture.step_recorder import StepRecorder
from dovetail.capture.step_tensors import unowned
from dovetail.ir.program import Node, Origin, Value
from dovetail.ops.facts import written_values


def origin_of(value: Value, nodes: Sequence[Node]) -> Origin | None:
    """The line that made a value; None for an input. Cost: O(nodes)."""
    return next((node.origin for node in nodes if value in node.outputs), None)


def origin_of_write(value: Value, nodes: Sequence[Node]) -> Origin | None:
    """The last line that wrote the memory of a value; None where nothing did. Cost: O(nodes)."""
    storage = value.tensor.storage
    written = (node for node in reversed(nodes) if any(x.tensor.storage == storage for x in written_values(node)))
    return next((node.origin for node in written), None)


def refuse_unowned(recorder: StepRecorder) -> None:
    """Raises: UnownedState where a real tensor was written that nobody declared."""
    constants = {value for _, value in recorder.constants}
    for value, tensor, _ in recorder.written:
        if value in constants:
            raise unowned(tensor, origin_of_write(value, recorder.nodes))
