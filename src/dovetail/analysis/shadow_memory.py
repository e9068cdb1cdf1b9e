"""Memory that holds tokens (see `analysis.tokens`) instead of numbers, and the regions that tensors occupy there.

A storage keeps one token for each `unit` bytes, and none at all while it holds one value as that was written: then it
only notes which. So a program that writes whole tensors costs nothing for their sizes.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property

import torch

from dovetail.analysis.tokens import Contents, Shape, refine
from dovetail.ops.prims import copy_into


@dataclass(frozen=True)
class Region:
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
                return self.count > 0 and self._places(self.itemsize).unique().numel() < self.count
            reach += step * (size - 1)
        return False

    def overlaps(self, other: Region) -> bool:
        """Whether two regions of one storage share a byte."""
        if not self.count or not other.count or self.first >= other.end or other.first >= self.end:
            return False
        if self.key == other.key or (self.is_contiguous and other.is_contiguous):
            return True
        unit = math.gcd(self.itemsize, other.itemsize)
        low = min(self.first, other.first) // unit
        marked = torch.zeros(max(self.end, other.end) // unit - low, dtype=torch.bool)
        marked[self._places(unit) - low] = True
        return bool(marked[other._places(unit) - low].any())

    def _places(self, unit: int) -> torch.Tensor:
        """The number of each `unit` bytes of the storage that lie here."""
        return self.of(torch.arange(self.end // unit), unit).reshape(-1)


class Storage:
    """The bytes of one storage, as tokens. is_input: it was there before the program ran.

    last_writer: what wrote here last, in words.
    """

    def __init__(self, size_bytes: int, *, is_input: bool = False) -> None:
        self.size_bytes = size_bytes
        self.is_input = is_input
        self.last_writer = ""
        self._run: tuple[int, int, int] | None = None  # bytes (first, end) that hold a value in order, its first token
        self._exact: tuple[Hashable, Region, int] | None = None  # a value that lies there in strides
        self._tokens: torch.Tensor | None = None
        self._unit = 0
        self._known: dict[Hashable, Contents] = {}

    def hold(self, start: int) -> None:
        """All bytes are those of the value whose first token is `start`."""
        self._run = (0, self.size_bytes, start)

    def read(self, region: Region) -> Contents:
        """What lies in a region."""
        if region.count == 0:
            return Contents(region.shape, region.itemsize, 0)
        if self._run is not None and region.is_contiguous:
            first, end, start = self._run
            if first <= region.first and region.end <= end:
                return Contents(region.shape, region.itemsize, start + region.first - first)
        if self._exact is not None and self._exact[0] == region.key:
            return Contents(region.shape, region.itemsize, self._exact[2])
        known = self._known.get(region.key)
        if known is None:
            tokens = self._spelled_out(region.itemsize)
            found = region.of(tokens, self._unit).reshape(region.count, -1).clone()  # it may be written
            known = self._known[region.key] = Contents.of(region.shape, region.itemsize, found)
        return known

    def write(self, region: Region, contents: Contents) -> None:
        """Put contents of the same shape into a region."""
        if region.count == 0:
            return
        self._known.clear()
        if contents.start is not None and self._is_replaced_by(region):
            self._tokens = self._run = self._exact = None
            if region.is_contiguous:
                self._run = (region.first, region.end, contents.start)
            else:
                self._exact = (region.key, region, contents.start)
            return
        unit = min(contents.unit(), region.itemsize)
        target = region.of(self._spelled_out(unit), self._unit)
        source = contents.spelled_out(self._unit).view(target.shape)
        if region.overlaps_itself():
            copy_into(target, source)
        else:
            target.copy_(source)

    def _is_replaced_by(self, region: Region) -> bool:
        """Whether nothing that was here is left after a write to the region."""
        if region.overlaps_itself():
            return False
        if region.is_contiguous and region.end - region.first == self.size_bytes:
            return True
        if self._tokens is not None:
            return False
        if self._exact is not None:
            return self._exact[0] == region.key
        if self._run is not None:
            return region.is_contiguous and region.first <= self._run[0] and self._run[1] <= region.end
        return True

    def _spelled_out(self, unit: int) -> torch.Tensor:
        """All tokens, one for each `unit` bytes or less; changes of it are changes of the storage."""
        if self._tokens is None:
            exact = self._exact[1].itemsize if self._exact is not None else unit
            unit = math.gcd(unit, exact, self.size_bytes, *(self._run[:2] if self._run is not None else ()))
            tokens = torch.zeros(self.size_bytes // unit, dtype=torch.int64)
            if self._run is not None:
                first, end, start = self._run
                tokens[first // unit : end // unit] = torch.arange(start, start + end - first, unit)
            if self._exact is not None:
                _, region, start = self._exact
                held = Contents(region.shape, region.itemsize, start)
                target = region.of(tokens, unit)
                target.copy_(held.spelled_out(unit).view(target.shape))
            self._tokens, self._unit, self._run, self._exact = tokens, unit, None, None
        elif unit < self._unit:
            self._tokens, self._unit = refine(self._tokens.unsqueeze(1), self._unit, unit).view(-1), unit
        return self._tokens

    def part(self, first: int, end: int) -> Storage:
        """A storage of its own that holds the same as the bytes from `first` to `end` of this one."""
        copy = Storage(end - first)
        if first == end:
            return copy
        if self._run is not None and self._run[0] <= first and end <= self._run[1]:
            copy.hold(self._run[2] + first - self._run[0])
            return copy
        tokens = self._spelled_out(math.gcd(first, end) or 1)
        copy._tokens, copy._unit = tokens[first // self._unit : end // self._unit].clone(), self._unit
        return copy

    def everything(self) -> Contents:
        """What all bytes hold, byte by byte."""
        return self.read(Region(0, (self.size_bytes,), (1,), 1))
