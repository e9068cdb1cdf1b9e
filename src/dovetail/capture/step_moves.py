"""Tensors of a step's state that lie on other memory when it ends: `p.data = other`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dovetail.capture.step_origins import origin_of, origin_of_write
from dovetail.capture.step_recorder import StepRecorder
from dovetail.capture.step_tensors import StepTensor
from dovetail.errors import StateChangedOtherwise
from dovetail.ir.program import Value


class Moves:
    """Finds the moves of a recording. found: the numbers of the tensors that move."""

    def __init__(self, recorder: StepRecorder, tensors: Sequence[StepTensor], values: Sequence[Value]) -> None:
        """values: of the tensors, as the step begins; there may be more of both later."""
        self.found: list[int] = []
        self._recorder = recorder
        self._tensors = tensors
        self._values = values

    def look_at(self, index: int) -> None:
        """Raises: StateChangedOtherwise for a tensor that is part of a graph now, or has another layout."""
        item, before, nodes = self._tensors[index], self._values[index], self._recorder.nodes
        if item.tensor.grad_fn is not None:
            raise StateChangedOtherwise(
                what=f"makes {item.label} part of a graph that the next step would run backward through",
                why="autograd graphs end with the step",
                hint="write it under torch.no_grad(), or detach the new contents",
                origin=origin_of_write(before, nodes),
            )
        value = self._recorder.value_of(item.tensor)
        if value is before or value.tensor == before.tensor:
            return
        is_alike = replace(value.tensor, storage=0, offset=0) == replace(before.tensor, storage=0, offset=0)
        if before not in self._recorder.moved or not is_alike:
            raise StateChangedOtherwise(
                what=f"changes the shape or strides of {item.label}",
                why="the next step would need another program",
                hint="work on a view of it, or a copy",
                origin=origin_of(value, nodes),
            )
        self.found.append(index)

    def to_other(self, index: int) -> int | None:
        """The tensor on whose memory one lies at the end, None for new memory."""
        value = self._recorder.value_of(self._tensors[index].tensor)
        return next((i for i, known in enumerate(self._values) if known.tensor == value.tensor), None)
