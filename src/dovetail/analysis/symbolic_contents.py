"""Memory that holds value numbers instead of data, for running a program symbolically.

A *value number* stands for one byte that some value holds. The bytes of a value have consecutive value numbers, in the
logical order of its elements, so a value number says which value the byte is from and which byte of it; an element is
named by the value number of its first byte. Equal value numbers mean equal bytes, whatever the data is. Value number 0
stands for bytes that were never written.

    x = [x0 x1 x2 x3]        64 68 72 76        (f32: four bytes each)
    y = x[1:3]                  68 72           the same value numbers, on the same storage

Source: value numbering, Cocke and Schwartz (1970), here for each byte.
"""

from __future__ import annotations

import bisect
import hashlib
import math
from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import torch

Shape: TypeAlias = tuple[int, ...]

_GAP = 64  # between the value numbers of two values: neighbours are never taken for one


@dataclass(frozen=True)
class Contents:
    """What a tensor holds, in one of two forms, of which equal contents have the same.

    start, steps: the value number of the first element, and how far value numbers are apart along each dimension (0
    along one of one element). numbers: where there are no such steps, one for each `itemsize / parts` bytes,
    int64[elements, parts].
    """

    shape: Shape
    itemsize: int
    start: int
    steps: Shape = ()
    numbers: torch.Tensor | None = None

    @staticmethod
    def run(shape: Shape, itemsize: int, start: int) -> Contents:
        """The elements of a value in order."""
        return Contents(shape, itemsize, start, _steps_in_order(shape, itemsize))

    @staticmethod
    def of(shape: Shape, itemsize: int, numbers: torch.Tensor) -> Contents:
        """What value numbers say; int64[elements, parts]."""
        parts = numbers.shape[1]
        if parts > 1:
            unit = itemsize // parts
            if torch.equal(numbers, numbers[:, :1] + torch.arange(0, itemsize, unit)):
                numbers = numbers[:, :1]
            elif unit > 1:
                numbers = refine(numbers, unit, 1)
        if numbers.shape[1] == 1:
            spread = numbers.view(shape)
            first = int(numbers[0, 0])
            corner = (slice(0, 1),) * len(shape)
            ahead = [(*corner[:dim], slice(1, 2), *corner[dim + 1 :]) for dim in range(len(shape))]
            steps = tuple(int(spread[ahead[d]].item()) - first if n > 1 else 0 for d, n in enumerate(shape))
            if first >= _GAP and torch.equal(spread, _spread(shape, first, steps)):
                return Contents(shape, itemsize, first, steps)
        return Contents(shape, itemsize, 0, (), numbers)

    @cached_property
    def ident(self) -> Hashable:
        """Equal for equal contents of one shape and element size, and only for those."""
        if 0 in self.shape:
            return 0
        if self.numbers is None:
            return (self.start, self.steps)
        numbers = self.numbers.contiguous()
        return (numbers.shape[1], hashlib.blake2b(numbers.numpy().data, digest_size=16).digest())

    @cached_property
    def is_in_order(self) -> bool:
        """Whether these are neighbouring elements of a value, in order."""
        return self.numbers is None and self.steps == _steps_in_order(self.shape, self.itemsize)

    @property
    def unit(self) -> int:
        """Bytes that one value number stands for."""
        return self.itemsize if self.numbers is None else self.itemsize // self.numbers.shape[1]

    def spelled_out(self, unit: int) -> torch.Tensor:
        """One value number for each `unit` bytes: int64[elements, itemsize / unit]. unit: no more than it has now."""
        if self.numbers is not None:
            return refine(self.numbers, self.unit, unit)
        return refine(_spread(self.shape, self.start, self.steps).reshape(-1, 1), self.itemsize, unit)

    def expanded(self, shape: Shape) -> Contents:
        """Broadcast to a shape."""
        if shape == self.shape:
            return self
        if 0 in shape:
            return Contents.run(shape, self.itemsize, 0)
        if self.numbers is None:
            steps = (*(0,) * (len(shape) - len(self.shape)), *self.steps)
            return Contents(shape, self.itemsize, self.start, steps)
        parts = self.numbers.shape[1]
        wide = self.numbers.view(*self.shape, parts).expand(*shape, parts)
        return Contents.of(shape, self.itemsize, wide.reshape(-1, parts))

    def reshaped(self, shape: Shape) -> Contents:
        """The same elements in the same order under another shape of as many."""
        assert math.prod(shape) == math.prod(self.shape), f"{shape} for {self.shape}"
        if shape == self.shape:
            return self
        if self.is_in_order or 0 in shape:
            return Contents.run(shape, self.itemsize, self.start)
        return Contents.of(shape, self.itemsize, self.spelled_out(self.unit))


def refine(numbers: torch.Tensor, unit: int, wanted: int) -> torch.Tensor:
    """Numbers for `unit` bytes each as numbers for `wanted` bytes each; int64[n, p] -> int64[n, p * unit / wanted]."""
    if unit == wanted:
        return numbers
    return (numbers.unsqueeze(-1) + torch.arange(0, unit, wanted)).view(len(numbers), -1)


def _steps_in_order(shape: Shape, itemsize: int) -> Shape:
    steps, step = [], itemsize
    for size in reversed(shape):
        steps.append(step if size != 1 else 0)
        step *= size
    return tuple(reversed(steps)) if step else (0,) * len(shape)


def _spread(shape: Shape, start: int, steps: Shape) -> torch.Tensor:
    """The value numbers of elements: int64[shape]."""
    spread = torch.full((1,) * len(shape), start)
    for dim, (size, step) in enumerate(zip(shape, steps, strict=True)):
        along = torch.arange(size) * step
        spread = spread + along.view(*(1,) * dim, size, *(1,) * (len(shape) - dim - 1))
    return spread


class Numbering:
    """Hands out value numbers, and knows those of a value's elements after a conversion."""

    def __init__(self) -> None:
        self._starts: list[int] = [0]
        self._sizes: list[int] = [_GAP]
        self._end = 2 * _GAP
        self._converted: dict[Hashable, int] = {}

    def new(self, size_bytes: int) -> int:
        """The first of `size_bytes` value numbers that nobody has."""
        start = self._end
        self._starts.append(start)
        self._sizes.append(size_bytes)
        self._end += (size_bytes // _GAP + 2) * _GAP
        return start

    def converted(self, contents: Contents, kind: Hashable, itemsize: int, *, undoes_itself: bool = False) -> Contents:
        """Each element after a conversion, to elements of `itemsize` bytes, which gives equal ones for equal ones."""
        if 0 in contents.shape:
            return Contents.run(contents.shape, itemsize, 0)
        old = contents.itemsize
        if contents.numbers is None and not any(step % old for step in contents.steps):
            reaches = [step * (n - 1) for n, step in zip(contents.shape, contents.steps, strict=True)]
            ends = [contents.start + sum(r for r in reaches if sign * r > 0) for sign in (-1, 1)]
            if self._range(ends[0]) == self._range(ends[1]) > 0:
                start = self._moved(contents.start, kind, old, itemsize, undoes_itself)
                steps = tuple(step // old * itemsize for step in contents.steps)
                return Contents(contents.shape, itemsize, start, steps)
        numbers = contents.spelled_out(contents.unit)
        if numbers.shape[1] > 1:  # elements put together of parts of others
            whole = (kind, contents.shape, contents.ident)
            if whole not in self._converted:
                self._converted[whole] = self.new(math.prod(contents.shape) * itemsize)
            return Contents.run(contents.shape, itemsize, self._converted[whole])
        flat = numbers[:, 0].contiguous()
        ranges = torch.searchsorted(torch.tensor(self._starts), flat, right=True) - 1
        result = torch.zeros_like(flat)
        for index in ranges.unique().tolist():
            here = ranges == index
            if index == 0:
                continue  # bytes that nobody wrote
            start = self._starts[index]
            inside = (flat[here] - start).remainder(old)
            for shift in inside.unique().tolist():
                chosen = here & ((flat - start).remainder(old) == shift)
                moved = self._moved(start + shift, kind, old, itemsize, undoes_itself)
                result[chosen] = moved + (flat[chosen] - start - shift) // old * itemsize
        return Contents.of(contents.shape, itemsize, result.unsqueeze(1))

    def _range(self, number: int) -> int:
        """The number of the range of a value number; 0 for bytes that nobody wrote."""
        return bisect.bisect_right(self._starts, number) - 1

    def _moved(self, number: int, kind: Hashable, old: int, new: int, undoes_itself: bool) -> int:
        """The value number of the element at `number` after the conversion."""
        index = self._range(number)
        start = self._starts[index]
        count, shift = divmod(number - start, old)
        key = (kind, start, shift)
        if key not in self._converted:
            self._converted[key] = made = self.new((self._sizes[index] // old + 1) * new)
            if undoes_itself:
                self._converted[kind, made, 0] = start + shift
        return self._converted[key] + count * new
