"""Tensors of rows with gaps between them, such as some of the columns of a matrix.

A loop takes their elements row by row, as torch does: the last elements of each row are those that its kernels compute
one by one. Each tensor has a pitch of its own, the distance from row to row; it is 0 where all rows are the same one.

Source: `at::TensorIterator`, which joins dimensions that lie behind each other in all operands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dovetail.ir.program import TensorMeta

_MOST_OF_ONE = 256
"""Rows of one element, at most: loops take 3 to 6 ns for each, torch's kernels less than 1, but 2 us for a call."""


@dataclass(frozen=True, slots=True)
class Grid:
    """rows: how many there are. inner: elements of each. pitches: of each tensor."""

    rows: int
    inner: int
    pitches: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Pitch:
    """The distance of a tensor's rows, in elements; 0 where all rows are the same one."""

    elements: int


def grid_of(metas: Sequence[TensorMeta]) -> Grid | None:
    """How tensors lie in rows, in the order of memory. The first is written; the others may be repeated for its rows.

    None where they lie in another way, where that is not known, or where there is only one row without gaps.
    """
    shape = metas[0].shape
    strides = [found for meta in metas if (found := _strides_for(meta, len(shape))) is not None]
    if len(strides) < len(metas):
        return None
    joined: list[tuple[int, tuple[int, ...]]] = []  # from the innermost one on: size, and the stride of each tensor
    for dim in sorted(range(len(shape)), key=lambda dim: (strides[0][dim], -dim)):
        size = shape[dim]
        if not isinstance(size, int) or any(_size_at(meta, dim, len(shape)) not in (1, size) for meta in metas):
            return None
        own = tuple(found[dim] for found in strides)
        if size == 1:
            continue
        if joined and all(a == b * joined[-1][0] for a, b in zip(own, joined[-1][1], strict=True)):
            joined[-1] = (joined[-1][0] * size, joined[-1][1])
        else:
            joined.append((size, own))
    if len(joined) == 1 and 0 < joined[0][0] <= _MOST_OF_ONE and any(step != 1 for step in joined[0][1]):
        joined.insert(0, (1, (1,) * len(metas)))  # rows of one element
    if len(joined) != 2:
        return None
    (inner, steps), (rows, pitches) = joined
    if any(step != 1 for step in steps) or pitches[0] < inner or any(0 < pitch < inner for pitch in pitches):
        return None
    return Grid(rows, inner, pitches)


def _size_at(meta: TensorMeta, dim: int, dims: int) -> object:
    own = dim - (dims - len(meta.shape))
    return meta.shape[own] if own >= 0 else 1


def _strides_for(meta: TensorMeta, dims: int) -> list[int] | None:
    """The strides of a tensor that is broadcast to some dimensions; None where they are not known, or are too few."""
    missing = dims - len(meta.shape)
    pairs = list(zip(meta.shape, meta.stride, strict=True))
    if missing < 0 or not all(isinstance(size, int) and isinstance(stride, int) for size, stride in pairs):
        return None
    return [0] * missing + [0 if size == 1 else int(stride) for size, stride in pairs]  # type: ignore[arg-type]
