"""Descriptions of values that lie elsewhere than they did when they were recorded."""

from __future__ import annotations

from dovetail.ir.program import TensorMeta
from dovetail.ir.sizes import Size, SizeExpr, product, shifted


def on_storage(meta: TensorMeta, storage: int, offset: Size | None = None) -> TensorMeta:
    """The description of a tensor that looks like `meta` and lies on another storage, at `offset` if that is given."""
    place = meta.offset if offset is None else offset
    return TensorMeta(meta.shape, meta.stride, place, meta.dtype, meta.device, storage)


def moved_view(view: TensorMeta, parent: TensorMeta, by: Size) -> TensorMeta:
    """The description of a view whose parent lies `by` elements (of the parent's) later than when it was recorded."""
    if view.dtype.itemsize != parent.dtype.itemsize and by != 0:
        size_bytes = product((by, parent.dtype.itemsize))
        unit = view.dtype.itemsize
        by = size_bytes // unit if isinstance(size_bytes, int) else SizeExpr("floordiv", (size_bytes, unit))
    return on_storage(view, parent.storage, shifted(view.offset, by))
