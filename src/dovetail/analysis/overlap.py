"""Which strided regions of one storage can share bytes.

Conservative: two regions are told apart by their extents (first to last byte) only, so interleaved regions count as
overlapping. Never wrong in the other direction.
"""

from __future__ import annotations

import torch

from dovetail.ir.program import TensorMeta


def extent_bytes(meta: TensorMeta) -> tuple[int, int] | None:
    """First byte and one past the last byte of a region in its storage; None when a size is symbolic."""
    dims = (*meta.shape, *meta.stride, meta.offset)
    if not all(isinstance(dim, int) for dim in dims):
        return None
    return _extent(
        [d for d in meta.shape if isinstance(d, int)],
        [d for d in meta.stride if isinstance(d, int)],
        meta.offset if isinstance(meta.offset, int) else 0,
        meta.dtype.itemsize,
    )


def _extent(shape: list[int], stride: list[int], offset: int, itemsize: int) -> tuple[int, int]:
    first = offset * itemsize
    if any(size == 0 for size in shape):
        return (first, first)
    last = sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
    return (first, first + (last + 1) * itemsize)


def may_overlap(a: TensorMeta, b: TensorMeta) -> bool:
    """Whether two regions can share a byte."""
    if a.storage != b.storage:
        return False
    extent_a, extent_b = extent_bytes(a), extent_bytes(b)
    if extent_a is None or extent_b is None:
        return True
    return max(extent_a[0], extent_b[0]) < min(extent_a[1], extent_b[1])  # an empty region overlaps nothing


def address_range(tensor: torch.Tensor) -> tuple[int, int]:
    """First and one past the last byte address that a real tensor occupies."""
    first, end = _extent(list(tensor.shape), list(tensor.stride()), 0, tensor.element_size())
    start = tensor.data_ptr()
    return (start + first, start + end)
