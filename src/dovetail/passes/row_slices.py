"""Values whose rows are taken in blocks: laid out so that one dimension holds the rows."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch

from dovetail.ir.program import TensorMeta, Value
from dovetail.ir.sizes import product
from dovetail.ops.rows import Rows

aten = torch.ops.aten


def flat_rows(call: Callable[..., Value], value: Value, rows: Rows, units: int) -> Value:
    """The value with its rows in one dimension. call: appends the call of an operator, and gives its result."""
    if rows.is_turned or rows.lead == 1:
        return value
    if not _collapses(value.tensor, rows.lead):
        value = call(aten.clone.default, (value,), (("memory_format", torch.contiguous_format),))
    shape = [size for size in value.tensor.shape if isinstance(size, int)]
    return call(aten.view.default, (value, rows.shape_of(shape, units)))


def _collapses(meta: TensorMeta, lead: int) -> bool:
    """Whether a view can show the leading dimensions as one."""
    dims = [(size, step) for size, step in zip(meta.shape[:lead], meta.stride[:lead], strict=True) if size != 1]
    return all(outer == product((inner, size)) for (_, outer), (size, inner) in pairwise(dims))
