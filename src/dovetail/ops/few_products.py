"""Which convolutions by 3x3 weights take fewer products, by tiles of 2x2 pixels, and what memory that takes.

Machine code does it (`execute.native.winograd_text`). Source: Lavin and Gray, "Fast Algorithms for Convolutional Neural
Networks" (2016), F(2x2, 3x3).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dovetail.ops.panels import MOST_ROOMS, WIDTH

STEP, KERNEL = 2, 3
"""Pixels of the result on a side of a tile, and of the weight."""

READ = STEP + KERNEL - 1
"""Pixels of the image on a side of what a tile reads."""

APART = 16
"""Elements more between transformed pixels, or weights, of two products: or they share lines of the cache."""

PRODUCTS = READ * READ
"""Numbers that a tile, or a weight, is transformed to, for each channel."""

_CHANNELS, _FEWEST_TILES = 16, 16  # inputs and outputs come in such vectors; of a convolution
_MOST_INPUTS = 256  # a sum is of this many products at most, so that rounding grows as it does elsewhere
_CHUNK, _MOST_OF_ONE = 24, 64  # tiles: of a chunk, twice as many of many inputs; of a convolution of one chunk
_SMALL = 1 << 16  # elements that are taken in any case
_TURNS = 4  # of each thread: chunks from which on these are shared whole


@dataclass(frozen=True, slots=True)
class Tiling:
    """chunk: tiles that are transformed together. is_given: whether a row before transforms the weight. is_whole:
    whether threads share chunks, not pairs of a chunk and a panel. rooms, room: how many threads may have one, and its
    elements. elements: all that is taken.
    """

    chunk: int
    is_given: bool
    is_whole: bool
    rooms: int
    room: int
    elements: int


def tiling_of(
    size: Sequence[int], stride: Sequence[int], images: int, result: tuple[int, int], threads: int
) -> Tiling | None:
    """How a convolution of one group is computed with fewer products; None where it is not, as it would take longer, or
    more memory than the image, the result and the weight twice.

    size: of the weight. result: rows and columns.
    """
    outputs, inputs, *kernel = size
    tiles = images * -(-result[0] // STEP) * -(-result[1] // STEP)
    is_small = (*kernel, *stride) == (KERNEL, KERNEL, 1, 1) and min(result) >= STEP
    fills = outputs % _CHANNELS == 0 and inputs % _CHANNELS == 0 and 0 < inputs <= _MOST_INPUTS
    if not (is_small and fills and tiles >= _FEWEST_TILES):
        return None
    panels, pixels = -(-outputs // WIDTH), images * result[0] * result[1]
    most = max(_SMALL, 2 * (pixels * (inputs + outputs) + inputs * outputs * KERNEL * KERNEL))
    found = (_tiling(tiles, inputs, panels, threads, *chosen) for chosen in _choices(tiles, inputs, panels, threads))
    return next((each for each in found if each.elements <= most), None)


def _choices(tiles: int, inputs: int, panels: int, threads: int) -> Iterator[tuple[int, bool]]:
    """Tiles of a chunk, and whether the weight is transformed before: from the fastest on."""
    if tiles <= _MOST_OF_ONE and panels >= threads:
        yield tiles, False
    least, usual = -(-threads // panels), _CHUNK if 2 * inputs <= _MOST_INPUTS else 2 * _CHUNK
    yield -(-tiles // max(least, -(-tiles // usual))), True
    if tiles <= 2 * _MOST_OF_ONE:
        yield -(-tiles // max(least, 2)), False


def _tiling(tiles: int, inputs: int, panels: int, threads: int, chunk: int, is_given: bool) -> Tiling:
    chunks = -(-tiles // chunk)
    rooms, room = min(MOST_ROOMS, threads, chunks * panels), room_elements(chunk, inputs)
    room += 0 if is_given else weight_elements(1, inputs)
    elements = rooms * room + (weight_elements(panels, inputs) if is_given else 0)
    return Tiling(chunk, is_given, chunks >= _TURNS * threads, rooms, room, elements)


def room_elements(tiles: int, inputs: int) -> int:
    """Elements of a room for a chunk of tiles: its pixels, and products by a panel, which are followed by the panel
    where it is transformed there.
    """
    return PRODUCTS * (tiles * inputs + APART) + tiles * PRODUCTS * WIDTH


def weight_elements(panels: int, inputs: int) -> int:
    """Elements of a transformed weight, or of one panel of it."""
    return panels * PRODUCTS * (inputs * WIDTH + APART)
