"""Memory that holds tokens instead of numbers, for running a program symbolically.

A *token* stands for one byte that some value holds. The bytes of a value have consecutive tokens, in the logical order
of its elements, so a token says which value the byte is from and which byte of it; an element is named by the token of
its first byte. Equal tokens mean equal bytes, whatever the numbers are. Token 0 stands for bytes that were never
written.

    x = [x0 x1 x2 x3]        64 68 72 76        (f32: four bytes each)
    y = x[1:3]                  68 72           the same tokens, on the same storage
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

_GAP = 64  # between the tokens of two values: neighbours are never taken for one


@dataclass(frozen=True)
class Contents:
    """What a tensor holds, in one of two forms, of which equal contents have the same.

    start, steps: the token of the first element, and how far tokens are apart along each dimension (0 along one of
    one element). tokens: where there are no such steps, one for each `itemsize / parts` bytes, int64[elements, parts].
    """

    shape: Shape
    itemsize: int
    start: int
    steps: Shape = ()
    tokens: torch.Tensor | None = None

    @staticmethod
    def run(shape: Shape, itemsize: int, start: int) -> Contents:
        """The elements of a value in order."""
        return Contents(shape, itemsize, start, _steps_in_order(shape, itemsize))

    @staticmethod
    def of(shape: Shape, itemsize: int, tokens: torch.Tensor) -> Contents:
        """What tokens say; int64[elements, parts]."""
        parts = tokens.shape[1]
        if parts > 1:
            unit = itemsize // parts
            if torch.equal(tokens, tokens[:, :1] + torch.arange(0, itemsize, unit)):
                tokens = tokens[:, :1]
            elif unit > 1:
                tokens = refine(tokens, unit, 1)
        if tokens.shape[1] == 1:
            spread = tokens.view(shape)
            first = int(tokens[0, 0])
            corner = (slice(0, 1),) * len(shape)
            ahead = [(*corner[:dim], slice(1, 2), *corner[dim + 1 :]) for dim in range(len(shape))]
            steps = tuple(int(spread[ahead[d]].item()) - first if n > 1 else 0 for d, n in enumerate(shape))
            if first >= _GAP and torch.equal(spread, _spread(shape, first, steps)):
                return Contents(shape, itemsize, first, steps)
        return Contents(shape, itemsize, 0, (), tokens)

    @cached_property
    def ident(self) -> Hashable:
        """Equal for equal contents of one shape and element size, and only for those."""
        if 0 in self.shape:
            return 0
        if self.tokens is None:
            return (self.start, self.steps)
        tokens = self.tokens.contiguous()
        return (tokens.shape[1], hashlib.blake2b(tokens.numpy().data, digest_size=16).digest())

    @cached_property
    def is_in_order(self) -> bool:
        """Whether these are neighbouring elements of a value, in order."""
        return self.tokens is None and self.steps == _steps_in_order(self.shape, self.itemsize)

    @property
    def unit(self) -> int:
        """Bytes that one token stands for."""
        return self.itemsize if self.tokens is None else self.itemsize // self.tokens.shape[1]

    def spelled_out(self, unit: int) -> torch.Tensor:
        """One token for each `unit` bytes: int64[elements, itemsize / unit]. unit: no more than it has now."""
        if self.tokens is not None:
            return refine(self.tokens, self.unit, unit)
        return refine(_spread(self.shape, self.start, self.steps).reshape(-1, 1), self.itemsize, unit)

    def expanded(self, shape: Shape) -> Contents:
        """Broadcast to a shape."""
        if shape == self.shape:
            return self
        if 0 in shape:
            return Contents.run(shape, self.itemsize, 0)
        if self.tokens is None:
            steps = (*(0,) * (len(shape) - len(self.shape)), *self.steps)
            return Contents(shape, self.itemsize, self.start, steps)
        parts = self.tokens.shape[1]
        wide = self.tokens.view(*self.shape, parts).expand(*shape, parts)
        return Contents.of(shape, self.itemsize, wide.reshape(-1, parts))

    def reshaped(self, shape: Shape) -> Contents:
        """The same elements in the same order under another shape of as many."""
        assert math.prod(shape) == math.prod(self.shape), f"{shape} for {self.shape}"
        if shape == self.shape:
            return self
        if self.is_in_order or 0 in shape:
            return Contents.run(shape, self.itemsize, self.start)
        return Contents.of(shape, self.itemsize, self.spelled_out(self.unit))


def refine(tokens: torch.Tensor, unit: int, wanted: int) -> torch.Tensor:
    """Tokens for `unit` bytes each as tokens for `wanted` bytes each; int64[n, p] -> int64[n, p * unit / wanted]."""
    if unit == wanted:
        return tokens
    return (tokens.unsqueeze(-1) + torch.arange(0, unit, wanted)).view(len(tokens), -1)


def _steps_in_order(shape: Shape, itemsize: int) -> Shape:
    steps, step = [], itemsize
    for size in reversed(shape):
        steps.append(step if size != 1 else 0)
        step *= size
    return tuple(reversed(steps)) if step else (0,) * len(shape)


def _spread(shape: Shape, start: int, steps: Shape) -> torch.Tensor:
    """The tokens of elements: int64[shape]."""
    spread = torch.full((1,) * len(shape), start)
    for dim, (size, step) in enumerate(zip(shape, steps, strict=True)):
        along = torch.arange(size) * step
        spread = spread + along.view(*(1,) * dim, size, *(1,) * (len(shape) - dim - 1))
    return spread


class Tokens:
    """Hands out tokens, and knows those of a value's elements after a conversion."""

    def __init__(self) -> None:
        self._starts: list[int] = [0]
        self._sizes: list[int] = [_GAP]
        self._end = 2 * _GAP
        self._converted: dict[Hashable, int] = {}

    def new(self, size_bytes: int) -> int:
        """The first of `size_bytes` tokens that nobody has."""
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
        if contents.tokens is None and not any(step % old for step in contents.steps):
            reaches = [step * (n - 1) for n, step in zip(contents.shape, contents.steps, strict=True)]
            ends = [contents.start + sum(r for r in reaches if sign * r > 0) for sign in (-1, 1)]
            if self._range(ends[0]) == self._range(ends[1]) > 0:
                start = self._moved(contents.start, kind, old, itemsize, undoes_itself)
                steps = tuple(step // old * itemsize for step in contents.steps)
                return Contents(contents.shape, itemsize, start, steps)
        tokens = contents.spelled_out(contents.unit)
        if tokens.shape[1] > 1:  # elements put together of parts of others
            whole = (kind, contents.shape, contents.ident)
            if whole not in self._converted:
                self._converted[whole] = self.new(math.prod(contents.shape) * itemsize)
            return Contents.run(contents.shape, itemsize, self._converted[whole])
        flat = tokens[:, 0].contiguous()
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

    def _range(self, token: int) -> int:
        """The number of the range of a token; 0 for bytes that nobody wrote."""
        return bisect.bisect_right(self._starts, token) - 1

    def _moved(self, token: int, kind: Hashable, old: int, new: int, undoes_itself: bool) -> int:
        """The token of the element at `token` after the conversion."""
        index = self._range(token)
        start = self._starts[index]
        count, shift = divmod(token - start, old)
        key = (kind, start, shift)
        if key not in self._converted:
            self._converted[key] = made = self.new((self._sizes[index] // old + 1) * new)
            if undoes_itself:
                self._converted[kind, made, 0] = start + shift
        return self._converted[key] + count * new
