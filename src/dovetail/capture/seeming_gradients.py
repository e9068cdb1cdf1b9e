"""Gradients from before that seem to be there while a step is recorded, to see whether it begins by dropping them.

Later calls find gradients where the first one finds none. A step that drops them is the same for both. If backward is
to add to one, it is there no more: the step is recorded as for a call that finds none.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch

from dovetail.capture.recorder import Recorder
from dovetail.capture.step_sharded import seeming_gradient
from dovetail.capture.step_tensors import StepTensor
from dovetail.ir.program import Value
from dovetail.torch_compat.fakes import FakeMode
from dovetail.torch_compat.graph_leaves import leaves_below
from dovetail.torch_compat.modes import functions_unnoticed


class SeemingGradients:
    """See the module docstring. found: by the number of a tensor, its seeming gradient, and the value of that."""

    def __init__(self, mode: FakeMode, recorder: Recorder, tensors: Sequence[StepTensor]) -> None:
        self.found: dict[int, tuple[torch.Tensor, Value]] = {}
        self._mode, self._recorder, self._tensors = mode, recorder, tensors

    @property
    def values(self) -> dict[int, Value]:
        """The values of the gradients, by the numbers of their tensors."""
        return {index: value for index, (_, value) in self.found.items()}

    def let_seem(self, index: int) -> None:
        """Let a tensor seem to have a gradient."""
        item = self._tensors[index]
        seeming, known = seeming_gradient(self._mode, item.tensor)
        self.found[index] = seeming, self._recorder.add_tensor(known, f"{item.name}_no_grad")
        item.tensor.grad = seeming

    def are_asked(self, asked: Collection[int]) -> bool:
        """Whether one of the tensors, by its identity, is among those whose gradient was asked for."""
        return any(id(self._tensors[index].tensor) in asked for index in self.found)

    def give_way(self, roots: Sequence[Any], asked: Collection[int]) -> None:
        """Backward is to add to the gradients of all leaves below these roots: they seem to be there no more, but for
        those that were dropped, used, or asked for. asked: see `are_asked`.
        """
        if not self.found:
            return
        places = {id(self._tensors[index].tensor): index for index in self.found}
        below = [places[id(leaf)] for leaf in leaves_below(roots) if id(leaf) in places]
        with functions_unnoticed():
            seeming = [index for index in below if self._tensors[index].tensor.grad is self.found[index][0]]
            used = {value for node in self._recorder.nodes for value in node.operands()} if seeming else set()
            for index in seeming:
                tensor = self._tensors[index].tensor
                if id(tensor) not in asked and self.found[index][1] not in used:
                    del self.found[index]
                    tensor.grad = None
