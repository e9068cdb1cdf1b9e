"""Where the elements of a convolution's planes lie: images whose channels come first, cut by the stride.

    x[c, y * 2 + 1, x * 2]  ->  plane (1, 0) of channel c at [y, x]         for a stride of 2

Each offset of a tap modulo the stride is a phase, with a plane of its own for each channel, so that a convolution of
any stride is one of stride 1 over planes. Their lines are as long as those of the result and what taps read behind, so
that a tap is a distance in memory, the same for each element of the result. What lies between lines is computed, and
not read.

Source: Vasudevan et al., "Parallel Multi Channel Convolution using General Matrix Multiplication" (2017), for products
of shifted rows; the phases are those of a polyphase filter.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod

Pair = tuple[int, int]

_ROOM = 1 << 16  # elements of the planes of a chunk of images, about: they stay in the second cache
_LONG = 128  # elements of a line of all images of a chunk from which on it is long enough


@dataclass(frozen=True)
class Geometry:
    """Sizes of a convolution without groups. size: of an image. Pairs are of rows and columns."""

    channels: int
    size: Pair
    outputs: int
    kernel: Pair
    stride: Pair
    padding: Pair
    dilation: Pair

    @cached_property
    def made(self) -> Pair:
        """Rows and columns of the result."""
        sizes = zip(self.size, self.kernel, self.stride, self.padding, self.dilation, strict=True)
        rows, columns = (
            (size + 2 * pad - (taps - 1) * apart - 1) // step + 1 for size, taps, step, pad, apart in sizes
        )
        return rows, columns

    @cached_property
    def phases(self) -> tuple[Pair, ...]:
        """Offsets modulo the stride that some tap has, in order."""
        return tuple(sorted({self._phase(tap) for tap in self._taps()}))

    @cached_property
    def lines(self) -> Pair:
        """Rows and columns of a plane of one image."""
        parts = zip(self.made, self.kernel, self.dilation, self.stride, strict=True)
        rows, columns = (made + (taps - 1) * apart // step for made, taps, apart, step in parts)
        return rows, columns

    @property
    def plane(self) -> int:
        """Elements of a plane of one image."""
        return prod(self.lines)

    @property
    def products(self) -> int:
        """Multiplications for one image."""
        return prod(self.made) * self.outputs * self.channels * prod(self.kernel)

    @cached_property
    def furthest(self) -> int:
        """The distance of the last tap."""
        return max(self._distance(tap) for tap in self._taps())

    def chunk(self, step: int) -> int:
        """How many images are worked on at a time. step: elements that a tile takes at once."""
        held = len(self.phases) * self.channels + self.outputs
        fits = _ROOM // (held * self.plane)
        wanted = -(-max(_LONG, 4 * step) // self.plane)
        return max(1, min(fits, wanted))

    def line(self, step: int) -> int:
        """Elements of the planes of a channel, of all images of a chunk, with what tiles and taps read behind."""
        whole = -(-self.chunk(step) * self.plane // step) * step
        return whole + -(-self.furthest // step) * step

    def inner_offsets(self, line: int) -> list[int]:
        """Where each tap of a weight reads in the planes of the input, in the weight's order."""
        return [
            (self.phases.index(self._phase(tap)) * self.channels + c) * line + self._distance(tap)
            for c in range(self.channels)
            for tap in self._taps()
        ]

    def outer_offsets(self, phase: Pair, line: int) -> list[Pair]:
        """For the gradient of a phase of the input: of each tap and output, its place in the weight behind that of the
        channel, and where it reads in the planes of the result.
        """
        taps, all_taps = [tap for tap in self._taps() if self._phase(tap) == phase], prod(self.kernel)
        return [
            (
                o * self.channels * all_taps + row * self.kernel[1] + column,
                o * line - self._distance((row, column)),
            )
            for o in range(self.outputs)
            for row, column in taps
        ]

    def reached(self, dim: int, phase: int) -> Pair:
        """From which to before which line of a plane (of rows, or of columns) the image reaches."""
        step, pad = self.stride[dim], self.padding[dim]
        first = max(0, -(-(pad - phase) // step))
        end = min(self.lines[dim], (self.size[dim] - 1 + pad - phase) // step + 1)
        return min(first, self.lines[dim]), max(end, min(first, self.lines[dim]))

    def _taps(self) -> Iterator[Pair]:
        return ((row, column) for row in range(self.kernel[0]) for column in range(self.kernel[1]))

    def _phase(self, tap: Pair) -> Pair:
        row, column = (at * apart % step for at, apart, step in zip(tap, self.dilation, self.stride, strict=True))
        return row, column

    def _distance(self, tap: Pair) -> int:
        row, column = (at * apart // step for at, apart, step in zip(tap, self.dilation, self.stride, strict=True))
        return row * self.lines[1] + column
