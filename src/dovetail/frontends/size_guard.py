"""The sizes that a program with symbolic sizes accepts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dovetail.ir.program import TensorMeta, Value
from dovetail.ir.sizes import Number, Scalar, Size, SizeExpr, evaluate, holds
from dovetail.reach.values import is_a


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
        sizes = self.sizes(tensors)
        return sizes is not None and all(_agrees(meta, tensor, sizes) for meta, tensor in self._pairs(tensors))

    def sizes(self, tensors: Sequence[Any]) -> dict[str, Number] | None:
        """The number of each symbol; None when the program is not right for inputs of these shapes."""
        sizes: dict[str, Number] = {}
        pairs = self._pairs(tensors)
        if not all(isinstance(tensor, torch.Tensor) for _, tensor in pairs):
            return None
        for meta, tensor in pairs:
            if len(meta.shape) != tensor.dim() or not _bind(meta.shape, tensor.shape, sizes):
                return None
        _bind_strides(pairs, sizes)
        fits = all(number > 1 for number in sizes.values()) and all(_has_shape(meta, x, sizes) for meta, x in pairs)
        known = {**_offsets(pairs), **sizes}
        return sizes if fits and all(holds(fact, known) for fact in self.facts) else None

    def reason(self, tensors: Sequence[Any], names: Sequence[str]) -> str:
        """Why the program is not right for inputs of these shapes. names: of the inputs."""
        sizes: dict[str, Number] = {}
        for name, meta, tensor in zip(names, self.inputs, tensors, strict=False):
            if meta is None:
                continue
            wanted, given = f"[{', '.join(map(str, meta.shape))}]", f"[{', '.join(map(str, tensor.shape))}]"
            fits = len(meta.shape) == tensor.dim() and _bind(meta.shape, tensor.shape, sizes)
            if not fits or not _has_shape(meta, tensor, sizes):
                return f"{name} has shape {given}, and the program is for {wanted}" + _text(sizes)
        pairs = self._pairs(tensors)
        _bind_strides(pairs, sizes)
        small = next((symbol for symbol, number in sizes.items() if number < 2), None)
        if small is not None:
            return f"the program is for sizes above 1, and {small} is {sizes[small]}"
        known = {**_offsets(pairs), **sizes}
        broken = next((fact for fact in self.facts if not holds(fact, known)), None)
        return f"the program relies on {broken}" + _text(sizes) if broken is not None else "nothing is wrong"

    def _pairs(self, tensors: Sequence[Any]) -> list[tuple[TensorMeta, torch.Tensor]]:
        pairs = zip(self.inputs, tensors, strict=False)
        return [(m, t) for m, t in pairs if m is not None and (not is_a(t, torch.Tensor) or t.layout is torch.strided)]


def shape_of(meta: TensorMeta, sizes: Mapping[str, Number]) -> tuple[int, ...]:
    """The shape that a description stands for."""
    return tuple(int(evaluate(size, sizes)) for size in meta.shape)


def strides_of(meta: TensorMeta, sizes: Mapping[str, Number]) -> tuple[int, ...]:
    """The strides that a description stands for."""
    return tuple(int(evaluate(step, sizes)) for step in meta.stride)


def _text(sizes: Mapping[str, Number]) -> str:
    return f" (here {', '.join(f'{name} = {number}' for name, number in sizes.items())})" if sizes else ""


def _has_shape(meta: TensorMeta, tensor: torch.Tensor, sizes: Mapping[str, Number]) -> bool:
    return all(evaluate(size, sizes) == number for size, number in zip(meta.shape, tensor.shape, strict=True))


def _bind(wanted: tuple[Size, ...], given: Sequence[int], sizes: dict[str, Number]) -> bool:
    """Give each bare symbol its number; False when two numbers meet."""
    for size, number in zip(wanted, given, strict=True):
        if isinstance(size, SizeExpr) and size.op == "symbol" and sizes.setdefault(str(size), number) != number:
            return False
    return True


def _bind_strides(pairs: Sequence[tuple[TensorMeta, torch.Tensor]], sizes: dict[str, Number]) -> None:
    """Give numbers to symbols that are the stride of a dimension and no size."""
    for meta, tensor in pairs:
        for step, number in zip(meta.stride, tensor.stride(), strict=True):
            if isinstance(step, SizeExpr) and step.op == "symbol":
                sizes.setdefault(str(step), number)


def _offsets(pairs: Sequence[tuple[TensorMeta, torch.Tensor]]) -> dict[str, Number]:
    """The numbers of symbols that say where a tensor begins in its storage."""
    return {
        str(meta.offset): int(tensor.storage_offset())
        for meta, tensor in pairs
        if isinstance(meta.offset, SizeExpr) and meta.offset.op == "symbol"
    }


def _agrees(meta: TensorMeta, tensor: torch.Tensor, sizes: Mapping[str, Number]) -> bool:
    return all(evaluate(step, sizes) == number for step, number in zip(meta.stride, tensor.stride(), strict=True))
