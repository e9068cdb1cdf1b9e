"""Memory that holds value numbers (`analysis.symbolic_contents`) instead of data, and where tensors lie in it.

A storage keeps one value number for each `unit` bytes, and none at all while it holds one value as that was written:
then it only notes which. So a program that writes whole tensors costs nothing for their sizes.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property

import torch

from dovetail.analysis.symbolic_contents import Contents, Shape, refine
from dovetail.ops.prims import copy_into

_WIDEST = 16  # bytes of the widest element


@dataclass(frozen=True)
class ShadowRegion:
    """Where a tensor lies in its storage. offset, stride: in elements of `itemsize` bytes."""

    offset: int
    shape: Shape
    stride: Shape
    itemsize: int

    @cached_property
    def key(self) -> Hashable:
        """Equal for regions of the same bytes in the same order; steps along dimensions of one element do not count."""
        steps = tuple(step if size != 1 else 0 for step, size in zip(self.stride, self.shape, strict=True))
        return (self.offset if self.count else 0, self.shape, steps if self.count else (), self.itemsize)

    @cached_property
    def count(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @cached_property
    def first(self) -> int:
        """The first byte."""
        return self.offset * self.itemsize

    @cached_property
    def end(self) -> int:
        """One past the last byte."""
        if not self.count:
            return self.first
        last = sum((size - 1) * step for size, step in zip(self.shape, self.stride, strict=True))
        return self.first + (last + 1) * self.itemsize

    @cached_property
    def is_contiguous(self) -> bool:
        """Whether the elements lie in order without gaps."""
        step = 1
        for size, stride in zip(reversed(self.shape), reversed(self.stride), strict=True):
            if size != 1 and stride != step:
                return False
            step *= size
        return True

    def of(self, memory: torch.Tensor, unit: int) -> torch.Tensor:
        """The part of a flat tensor, with an item for each `unit` bytes, that lies here: [*shape, itemsize / unit]."""
        parts = self.itemsize // unit
        steps = tuple(step * parts for step in self.stride)
        return memory.as_strided((*self.shape, parts), (*steps, 1), self.offset * parts)

    def overlaps_itself(self) -> bool:
        """Whether two elements share a byte."""
        reach = 0
        for step, size in sorted((s, n) for s, n in zip(self.stride, self.shape, strict=True) if n > 1):
            if step <= reach:
                return self.count > 0 and self.places(self.itemsize).unique().numel() < self.count
            reach += step * (size - 1)
        return False

    def overlaps(self, other: ShadowRegion) -> bool:
        """Whether two regions of one storage share a byte."""
        if not self.count or not other.count or self.first >= other.end or other.first >= self.end:
            return False
        if self.key == other.key or (self.is_contiguous and other.is_contiguous):
            return True
        unit = math.gcd(self.itemsize, other.itemsize)
        low = min(self.first, other.first) // unit
        marked = torch.zeros(max(self.end, other.end) // unit - low, dtype=torch.bool)
        marked[self.places(unit) - low] = True
        return bool(marked[other.places(unit) - low].any())

    def places(self, unit: int) -> torch.Tensor:
        """The number of each `unit` bytes of the storage that lie here."""
        return self.of(torch.arange(self.end // unit), unit).reshape(-1)


class Storage:
    """The bytes of one storage, as value numbers. is_input: it was there before the program ran.

    last_writer: what wrote here last, in words.
    """

    def __init__(self, size_bytes: int, *, is_input: bool = False) -> None:
        self.size_bytes = size_bytes
        self.is_input = is_input
        self.last_writer = ""
        self._held: tuple[ShadowRegion, Contents] | None = None  # all that it holds, while there are no value numbers
        self._numbers: torch.Tensor | None = None
        self._unit = 0
        self._known: dict[Hashable, Contents] = {}

    def hold(self, start: int) -> None:
        """All bytes are those of the value whose first value number is `start`."""
        whole = ShadowRegion(0, (self.size_bytes,), (1,), 1)
        self._held = (whole, Contents.run(whole.shape, 1, start))

    def hold_numbers(self, numbers: torch.Tensor, unit: int) -> None:
        """The bytes are those of these value numbers, one for each `unit` bytes; it keeps and changes them."""
        self._held, self._numbers, self._unit = None, numbers, unit

    def read(self, region: ShadowRegion) -> Contents:
        """What lies in a region."""
        if region.count == 0:
            return Contents.run(region.shape, region.itemsize, 0)
        if self._held is not None:
            held, contents = self._held
            if held.key == region.key:
                return contents
            if held.is_contiguous and contents.is_in_order and held.first <= region.first and region.end <= held.end:
                steps = tuple(
                    s * region.itemsize if n != 1 else 0 for s, n in zip(region.stride, region.shape, strict=True)
                )
                return Contents(region.shape, region.itemsize, contents.start + region.first - held.first, steps)
        known = self._known.get(region.key)
        if known is None:
            numbers = self._spelled_out(region.itemsize)
            found = region.of(numbers, self._unit).reshape(region.count, -1).clone()  # it may be written
            known = self._known[region.key] = Contents.of(region.shape, region.itemsize, found)
        return known

    def write(self, region: ShadowRegion, contents: Contents) -> None:
        """Put contents of the same shape into a region."""
        if region.count == 0:
            return
        self._known.clear()
        if contents.numbers is None and self._is_replaced_by(region):
            self._numbers, self._held = None, (region, contents)
            return
        target = region.of(self._spelled_out(min(contents.unit, region.itemsize)), self._unit)
        source = contents.spelled_out(self._unit).view(target.shape)
        if region.overlaps_itself():
            copy_into(target, source)
        else:
            target.copy_(source)

    def _is_replaced_by(self, region: ShadowRegion) -> bool:
        """Whether nothing that was here is left after a write to the region."""
        if region.overlaps_itself():
            return False
        if region.is_contiguous and region.end - region.first == self.size_bytes:
            return True
        if self._numbers is not None or self._held is None:
            return self._numbers is None
        held = self._held[0]
        return held.key == region.key or (
            region.is_contiguous and region.first <= held.first and held.end <= region.end
        )

    def _spelled_out(self, unit: int) -> torch.Tensor:
        """All value numbers, one for each `unit` bytes or less; changes of it are changes of the storage."""
        if self._numbers is None:
            region, contents = self._held or (ShadowRegion(0, (0,), (1,), unit), Contents.run((0,), unit, 0))
            if region.is_contiguous and contents.is_in_order:  # bytes in order are units in order
                unit = math.gcd(unit, self.size_bytes, region.first, region.end)
                count = (region.end - region.first) // unit
                region = ShadowRegion(region.first // unit, (count,), (1,), unit)
                contents = Contents.run((count,), unit, contents.start)
            unit = math.gcd(unit, self.size_bytes, region.first, contents.unit)
            self._numbers = torch.zeros(self.size_bytes // unit, dtype=torch.int64)
            self._unit, self._held = unit, None
            target = region.of(self._numbers, unit)
            target.copy_(contents.spelled_out(unit).view(target.shape))
        elif unit < self._unit:
            self._numbers, self._unit = refine(self._numbers.unsqueeze(1), self._unit, unit).view(-1), unit
        return self._numbers

    def part(self, first: int, end: int) -> Storage:
        """A storage of its own that holds the same as the bytes from `first` to `end` of this one."""
        copy = Storage(end - first)
        if first == end:
            return copy
        bytes_of_it = ShadowRegion(first, (end - first,), (1,), 1)
        if self._held is not None and self._held[0].is_contiguous and self._held[1].is_in_order:
            held = self._held[0]
            if held.first <= first and end <= held.end:
                copy.hold(self.read(bytes_of_it).start)
                return copy
        numbers = self._spelled_out(math.gcd(first, end, _WIDEST))
        copy.hold_numbers(numbers[first // self._unit : end // self._unit].clone(), self._unit)
        return copy

    def everything(self) -> Contents:
        """What all bytes hold, byte by byte."""
        return self.read(ShadowRegion(0, (self.size_bytes,), (1,), 1))
