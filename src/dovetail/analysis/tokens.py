"""Memory that holds tokens instead of numbers, for running a program in the head.

A *token* stands for one byte that some value holds. The bytes of a value have consecutive tokens, in the logical order
of its elements, so a token says which value the byte is from and which byte of it; an element is named by the token of
its first byte. Equal tokens mean equal bytes, whatever the numbers are. Token 0 stands for bytes that nobody wrote.

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
    """What a tensor holds: the elements of a value in order (`start` is their first token), or tokens.

    tokens: int64[elements, parts], one token for each `itemsize / parts` bytes.
    """

    shape: Shape
    itemsize: int
    start: int | None = None
    tokens: torch.Tensor | None = None

    @staticmethod
    def of(shape: Shape, itemsize: int, tokens: torch.Tensor) -> Contents:
        """From tokens, in the one form that equal contents have."""
        parts = tokens.shape[1]
        if parts > 1:
            unit = itemsize // parts
            if torch.equal(tokens, tokens[:, :1] + torch.arange(0, itemsize, unit)):
                tokens = tokens[:, :1]
            elif unit > 1:
                tokens = refine(tokens, unit, 1)
        if tokens.shape[1] == 1:
            first = int(tokens[0, 0])
            last = first + (len(tokens) - 1) * itemsize
            is_run = int(tokens[-1, 0]) == last and torch.equal(tokens[:, 0], torch.arange(first, last + 1, itemsize))
            if is_run and first >= _GAP:
                return Contents(shape, itemsize, first)
        return Contents(shape, itemsize, None, tokens)

    @cached_property
    def ident(self) -> Hashable:
        """Equal for equal contents of one shape and element size, and only for those."""
        if 0 in self.shape:
            return 0
        if self.tokens is None:
            return self.start
        tokens = self.tokens.contiguous()
        return (tokens.shape[1], hashlib.blake2b(tokens.numpy().data, digest_size=16).digest())

    def spelled_out(self, unit: int) -> torch.Tensor:
        """One token for each `unit` bytes: int64[elements, itemsize / unit]. unit: no more than it has now."""
        if self.tokens is not None:
            return refine(self.tokens, self.itemsize // self.tokens.shape[1], unit)
        assert self.start is not None, "contents have a start or tokens"
        size_bytes = math.prod(self.shape) * self.itemsize
        return torch.arange(self.start, self.start + size_bytes, unit).view(-1, self.itemsize // unit)

    def unit(self) -> int:
        """Bytes that one token stands for."""
        return self.itemsize if self.tokens is None else self.itemsize // self.tokens.shape[1]

    def expanded(self, shape: Shape) -> Contents:
        """Broadcast to a shape."""
        if shape == self.shape:
            return self
        if math.prod(shape) == 0 or 0 in self.shape:
            return Contents(shape, self.itemsize, 0)
        tokens = self.spelled_out(self.unit())
        wide = tokens.view(*self.shape, tokens.shape[1]).expand(*shape, tokens.shape[1])
        return Contents.of(shape, self.itemsize, wide.reshape(-1, tokens.shape[1]))

    def reshaped(self, shape: Shape) -> Contents:
        """The same elements in the same order under another shape."""
        return self if shape == self.shape else Contents(shape, self.itemsize, self.start, self.tokens)


def refine(tokens: torch.Tensor, unit: int, wanted: int) -> torch.Tensor:
    """Tokens for `unit` bytes each as tokens for `wanted` bytes each; int64[n, p] -> int64[n, p * unit / wanted]."""
    if unit == wanted:
        return tokens
    return (tokens.unsqueeze(-1) + torch.arange(0, unit, wanted)).view(len(tokens), -1)


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
            return Contents(contents.shape, itemsize, 0)
        old = contents.itemsize
        if contents.start is not None:
            place = self._moved(contents.start, kind, old, itemsize, undoes_itself)
            if place is not None:
                return Contents(contents.shape, itemsize, place)
        tokens = contents.spelled_out(contents.unit())
        if tokens.shape[1] > 1:  # elements put together of parts of others
            whole = (kind, contents.shape, contents.ident)
            if whole not in self._converted:
                self._converted[whole] = self.new(math.prod(contents.shape) * itemsize)
            return Contents(contents.shape, itemsize, self._converted[whole])
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
                assert moved is not None, "a range holds its own tokens"
                result[chosen] = moved + (flat[chosen] - start - shift) // old * itemsize
        return Contents.of(contents.shape, itemsize, result.unsqueeze(1))

    def _moved(self, token: int, kind: Hashable, old: int, new: int, undoes_itself: bool) -> int | None:
        """The token of the element at `token` after the conversion."""
        index = bisect.bisect_right(self._starts, token) - 1
        if index == 0:
            return None
        start = self._starts[index]
        count, shift = divmod(token - start, old)
        key = (kind, start, shift)
        if key not in self._converted:
            self._converted[key] = made = self.new((self._sizes[index] // old + 1) * new)
            if undoes_itself:
                self._converted[kind, made, 0] = start + shift
        return self._converted[key] + count * new
