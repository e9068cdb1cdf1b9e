"""What code does with `.grad` of tensors while it is recorded."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

from dovetail.errors import GradientAccess
from dovetail.torch_compat.fakes import is_fake

_READ = "pass the gradient as an argument, or compile the whole step with dovetail.compile_step"
_SET = "return the gradient and set it outside, or compile the whole step with dovetail.compile_step"


class GradientUse:
    """Is asked for each `.grad` that code of the user's reads or sets.

    read: the inputs, by number, whose `.grad` was read. refusals: what was raised, which the code may have caught.
    """

    def __init__(self, inputs: Sequence[Any], with_gradient: Collection[int], name_of: Callable[[int], str]) -> None:
        """inputs: the stand-ins of the tensors among them. with_gradient: those that hold one in this call."""
        self._number = {id(stand_in): number for number, stand_in in enumerate(inputs)}
        self._with_gradient, self._name_of = with_gradient, name_of
        self.read, self.refusals = set[int](), list[GradientAccess]()

    def __call__(self, tensor: torch.Tensor, is_written: bool) -> bool:
        """Whether the recording answers for this `.grad`. Raises: GradientAccess."""
        number = self._number.get(id(tensor))
        if is_written and (number is not None or not is_fake(tensor)):
            raise self._refused(number, "sets", _SET)
        if number is not None:
            self.read.add(number)
            if number in self._with_gradient:
                raise self._refused(number, "reads", _READ)
        return number is not None or is_fake(tensor)

    def _refused(self, number: int | None, does: str, hint: str) -> GradientAccess:
        name = "a tensor that it closes over" if number is None else self._name_of(number)
        self.refusals.append(GradientAccess(does=does, name=name, hint=hint))
        return self.refusals[-1]
