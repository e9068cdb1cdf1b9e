"""Which sizes a program of symbolic sizes may be called with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dovetail.ir.program import TensorMeta, Value
from dovetail.ir.sizes import Number, Scalar, Size, SizeExpr, evaluate


@dataclass(frozen=True, slots=True)
class SizeGuard:
    """inputs: description of each input, None for a number. facts: what recording relied on, over the symbols.

    A symbol stands for a size above 1: recording takes that for granted.
    """

    inputs: tuple[TensorMeta | None, ...]
    facts: tuple[Scalar, ...]

    @staticmethod
    def of(inputs: Sequence[Value], facts: Sequence[Scalar]) -> SizeGuard:
        """The guard of a program with these inputs that was recorded relying on `facts`."""
        return SizeGuard(tuple(v.tensor if v.is_tensor else None for v in inputs), tuple(facts))

    def holds(self, tensors: Sequence[Any]) -> bool:
        """Whether the program is right for these inputs. tensors: in the order of the program's inputs."""
        sizes: dict[str, Number] = {}
        pairs = [(m, t) for m, t in zip(self.inputs, tensors, strict=False) if m is not None]
        for meta, tensor in pairs:
            if len(meta.shape) != tensor.dim() or not _bind(meta.shape, tensor.shape, sizes):
                return False
        if any(number < 2 for number in sizes.values()):
            return False
        layouts = all(_agrees(meta, tensor, sizes) for meta, tensor in pairs)
        return layouts and all(evaluate(fact, sizes) for fact in self.facts)


def _bind(wanted: tuple[Size, ...], given: Sequence[int], sizes: dict[str, Number]) -> bool:
    """Give each bare symbol its number; False when two numbers meet."""
    for size, number in zip(wanted, given, strict=True):
        if isinstance(size, SizeExpr) and size.op == "symbol" and sizes.setdefault(str(size), number) != number:
            return False
    return True


def _agrees(meta: TensorMeta, tensor: torch.Tensor, sizes: Mapping[str, Number]) -> bool:
    wanted = (*meta.shape, *meta.stride)
    given = (*tensor.shape, *tensor.stride())
    return all(evaluate(size, sizes) == number for size, number in zip(wanted, given, strict=True))
