"""Tensors of value numbers, and operators that move elements without changing them: views, copies, scatters.

A `NumberedTensor` is a tensor: its geometry is a real tensor whose data is ignored; its contents are the value numbers
on the shadow of its storage. Views are made by the view operators themselves, so torch determines their regions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import torch

from dovetail.analysis.shadow_memory import ShadowRegion, Storage
from dovetail.analysis.symbolic_contents import Contents, Numbering, Shape
from dovetail.torch_compat.dispatch import Overload, overloads, schema_of, storage_key

Layout = tuple[Shape, Shape, torch.dtype]


@dataclass(frozen=True)
class NumberedTensor:
    """A tensor: its geometry and the storage that holds its value numbers."""

    tensor: torch.Tensor
    storage: Storage

    @cached_property
    def region(self) -> ShadowRegion:
        """The bytes that it occupies."""
        tensor = self.tensor
        return ShadowRegion(
            int(tensor.storage_offset()), tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype.itemsize
        )

    @cached_property
    def bits(self) -> tuple[str, ...]:
        """What happens to each number between memory and the reader."""
        return ("conj",) * self.tensor.is_conj() + ("neg",) * self.tensor.is_neg()

    @cached_property
    def layout(self) -> Layout:
        """What a consumer sees of the tensor, apart from its place."""
        return layout_of(self.tensor)

    def overlaps(self, other: NumberedTensor) -> bool:
        """Whether the two share a byte."""
        return self.storage is other.storage and self.region.overlaps(other.region)

    def is_at(self, other: NumberedTensor) -> bool:
        """Whether the two have the same elements at the same places, and torch sees that.

        It takes other strides for another place, also along a dimension of one element.
        """
        same = self.storage is other.storage and self.region.key == other.region.key
        same = same and self.tensor.stride() == other.tensor.stride()
        return same and self.tensor.dtype == other.tensor.dtype and self.bits == other.bits


def layout_of(tensor: torch.Tensor) -> Layout:
    """Shape, stride and dtype; the step along a dimension of one element says nothing."""
    shape = tuple(tensor.shape)
    if 0 in shape:
        return (shape, (0,) * len(shape), tensor.dtype)
    return (shape, tuple(s if n != 1 else 0 for s, n in zip(tensor.stride(), shape, strict=True)), tensor.dtype)


def on_new_memory(tensor: torch.Tensor) -> NumberedTensor:
    """A tensor that nothing else lies on."""
    return NumberedTensor(tensor, Storage(tensor.untyped_storage().nbytes()))


_UNDECLARED_VIEWS = frozenset({"_unsafe_view", "unsafe_split", "unsafe_split_with_sizes"})


@cache
def is_view(op: Overload) -> bool:
    """Whether results may lie where an operand lies, which some operators do not declare."""
    schema = schema_of(op)
    return schema.name in _UNDECLARED_VIEWS or any(a.alias and not a.is_write for a in schema.arguments)


@cache
def view_behind(op: Overload, suffix: str, skip: int) -> Overload | None:
    """The view operator that `<view>_copy` or `<view>_scatter` is named after; `skip` arguments come before its own."""
    schema = schema_of(op)
    if not schema.name.endswith(suffix):
        return None
    wanted = [a.type for a in schema.arguments if not a.is_out][skip:]
    for candidate in overloads(schema.namespace, schema.name.removesuffix(suffix)):
        if is_view(candidate) and [a.type for a in schema_of(candidate).arguments][1:] == wanted:
            return candidate
    return None


class DataMovement:
    """Moves value numbers. writer: what writes now, in words."""

    def __init__(self, numbering: Numbering) -> None:
        self.numbering = numbering
        self.writer = ""

    def read(self, place: NumberedTensor) -> Contents:
        """What a reader of the tensor sees."""
        return self._through_bits(place, place.storage.read(place.region))

    def write(self, place: NumberedTensor, contents: Contents) -> None:
        """Let a reader of the tensor see `contents`, which have its shape and element size."""
        place.storage.write(place.region, self._through_bits(place, contents))
        place.storage.last_writer = self.writer

    def read_as(self, place: NumberedTensor, dtype: torch.dtype) -> Contents:
        """What a reader sees, as elements of another dtype."""
        return self.convert(self.read(place), place.tensor.dtype, dtype)

    def convert(self, contents: Contents, old: torch.dtype, new: torch.dtype) -> Contents:
        """Contents of dtype `old` as elements of dtype `new`."""
        return contents if old == new else self.numbering.converted(contents, (old, new), new.itemsize)

    def _through_bits(self, place: NumberedTensor, contents: Contents) -> Contents:
        """From memory to the reader, or back: both are the same."""
        for bit in place.bits:
            kind = (bit, place.tensor.dtype)
            contents = self.numbering.converted(contents, kind, contents.itemsize, undoes_itself=True)
        return contents

    def views(self, base: NumberedTensor, made: Any) -> list[NumberedTensor] | None:
        """What a view operator made of a tensor; where it copied, the copies. None where more happened than that."""
        found = []
        for tensor in [made] if isinstance(made, torch.Tensor) else made:
            if storage_key(tensor) == storage_key(base.tensor):
                found.append(NumberedTensor(tensor, base.storage))
                continue
            if tensor.numel() != base.tensor.numel() or base.bits:
                return None
            fresh = on_new_memory(tensor)
            self.write(fresh, self.read_as(base, tensor.dtype).reshaped(fresh.region.shape))
            found.append(fresh)
        return found

    def scattered(
        self,
        base: NumberedTensor,
        source: NumberedTensor,
        select: Callable[[torch.Tensor], torch.Tensor],
        *,
        whole: bool,
    ) -> NumberedTensor:
        """The base with the part that `select` gives replaced.

        whole: the copy is of the base's whole storage; otherwise of the bytes from its first to its last.
        """
        region = base.region
        first, end = (0, base.storage.size_bytes) if whole else (region.first, region.end)
        storage = base.storage.part(first, end)
        flat = torch.empty((end - first) // region.itemsize, dtype=base.tensor.dtype)
        made = NumberedTensor(flat.as_strided(region.shape, region.stride, region.offset if whole else 0), storage)
        storage.last_writer = self.writer
        if base.bits:
            self.write(made, self.read(base))
        part = NumberedTensor(select(made.tensor), storage)
        self.write(part, self.read_as(source, part.tensor.dtype).expanded(part.region.shape))
        return made
