"""The values of a program that runs on value numbers: what each is bound to, and what torch gets in its place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch

from dovetail.analysis.data_movement import NumberedTensor
from dovetail.analysis.value_numbers import OperatorCall
from dovetail.ir.program import Operand, ScalarMeta, TensorMeta, Value, values_in
from dovetail.ir.sizes import Number, SizeExpr, evaluate

Bound: TypeAlias = "NumberedTensor | int"  # a number is bound to its value number


class Misfit(Exception):
    """A node does something that its program must not do, or that cannot be followed."""


class Environment:
    """Values by what they are bound to, and sizes by their numbers (`hints`). env: what is alive."""

    def __init__(self, hints: Mapping[str, Number]) -> None:
        self.hints = hints
        self.env: dict[Value, Bound] = {}

    def described(self, meta: TensorMeta) -> torch.Tensor:
        """A tensor of this layout on memory of its own."""
        shape, stride, offset = self.sizes(meta.shape), self.sizes(meta.stride), self.size(meta.offset)
        if not offset:
            return torch.empty_strided(shape, stride, dtype=meta.dtype)
        extent = sum((size - 1) * step for size, step in zip(shape, stride, strict=True)) + 1 if shape.numel() else 0
        return torch.empty(offset + extent, dtype=meta.dtype).as_strided(shape, stride, offset)

    def written(self, call: OperatorCall) -> list[tuple[str, NumberedTensor]]:
        """The tensors that a call writes, lists flattened, each with its alias set."""
        return [(alias, self.place(v)) for _, alias, operand in call.writes for v in values_in(operand) if v.is_tensor]

    def place(self, operand: Operand) -> NumberedTensor:
        """The tensor that an operand stands for. Raises: Misfit when it stands for none."""
        bound = self.env.get(operand) if isinstance(operand, Value) else None
        if not isinstance(bound, NumberedTensor):
            raise Misfit(f"{operand} is not a tensor")
        return bound

    def concrete(self, operand: Operand) -> Any:
        """An operand as torch takes it: real tensors, and numbers for sizes."""
        if isinstance(operand, SizeExpr):
            return evaluate(operand, self.hints)
        if isinstance(operand, Value):
            meta = operand.meta
            return evaluate(meta.expr, self.hints) if isinstance(meta, ScalarMeta) else self.place(operand).tensor
        if isinstance(operand, tuple | list):
            return [self.concrete(item) for item in operand]
        return operand

    def sizes(self, sizes: Sequence[Any]) -> torch.Size:
        """Sizes as numbers."""
        return torch.Size([self.size(size) for size in sizes])

    def size(self, size: Any) -> int:
        """A size as a number."""
        return size if type(size) is int else int(evaluate(size, self.hints))
