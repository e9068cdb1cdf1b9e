"""Operands that a loop reads again and again: a bias for all rows, or one number for each.

The operand of element i of a loop is at (i / inner) % size, in whole numbers. A row is repeated element by element
(inner is 1), a column holds one number for `inner` elements.

    (N, C) + (C,)        inner 1, size C           (N, C) + (N, 1)      inner C, size without end
    (N, C, H) + (C, 1)   inner H, size C           (N, C) + (1, 1)      inner without end, size 1
    (1, C, H, W), channels last, + (1, C, 1, 1)    inner 1, size C
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dovetail.ir.program import TensorMeta
from dovetail.ir.sizes import Size, product

ENDLESS = 1 << 61


@dataclass(frozen=True, slots=True)
class Repeat:
    """inner: for how many elements in a row the operand stays the same; None: for as many as there are, divided by
    `size`. size: after how many it begins again. own: dimensions of the operand whose sizes make up its size.
    """

    inner: int | None
    size: Size
    own: tuple[int, ...] = ()

    @property
    def is_row(self) -> bool:
        """Whether neighbours are neighbours in the operand, too."""
        return self.inner == 1


def repeat_of(meta: TensorMeta, like: TensorMeta) -> Repeat | None:
    """How an operand is repeated for the elements of a tensor; None where it is not, or in another way.

    Elements of the other one lie without gaps, in order or, of known sizes, in another one (channels last).
    """
    missing, order = len(like.shape) - len(meta.shape), _order_of(like)
    if missing < 0 or order is None:
        return None
    sizes, strides = (1,) * missing + tuple(meta.shape), (0,) * missing + tuple(meta.stride)
    dims = [dim for dim in order if like.shape[dim] != 1]
    own = [dim for dim in dims if sizes[dim] == like.shape[dim] and strides[dim] != 0]
    if any(sizes[dim] not in (1, like.shape[dim]) for dim in dims) or own == dims:
        return None
    if not own:
        return Repeat(ENDLESS, 1)
    start, end = dims.index(own[0]), dims.index(own[-1]) + 1
    if own != dims[start:end] or not _lie_in_order([sizes[dim] for dim in own], [strides[dim] for dim in own]):
        return None
    inner, size = product(tuple(like.shape[dim] for dim in dims[end:])), product(tuple(sizes[dim] for dim in own))
    places = tuple(dim - missing for dim in own)
    if start == 0:
        return Repeat(inner, ENDLESS) if isinstance(inner, int) else Repeat(None, size, places)
    return Repeat(inner, size, places) if isinstance(inner, int) else None


def _order_of(meta: TensorMeta) -> Sequence[int] | None:
    """Dimensions from the outermost in memory to the innermost; None where there are gaps, or that is not known."""
    dims = range(len(meta.shape))
    if meta.is_contiguous():
        return dims
    known = [(stride, size) for stride, size in zip(meta.stride, meta.shape, strict=True) if size != 1]
    if not all(isinstance(stride, int) and isinstance(size, int) for stride, size in known):
        return None
    order = sorted(dims, key=lambda dim: -int(meta.stride[dim]) if meta.shape[dim] != 1 else 0)  # type: ignore[arg-type]
    kept = [dim for dim in order if meta.shape[dim] != 1]
    return order if _lie_in_order([meta.shape[d] for d in kept], [meta.stride[d] for d in kept]) else None


def _lie_in_order(sizes: Sequence[Size], strides: Sequence[Size]) -> bool:
    reach: Size = 1
    for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
        if stride != reach:
            return False
        reach = product((reach, size))
    return True
