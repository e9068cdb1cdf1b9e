"""Views of tensors with symbolic sizes, with the strides that ATen gives dimensions of size 1.

Torch's fakes of symbolic sizes work views out in Python, and give these dimensions other strides. What is not known for
sure stays as they have it: nothing is assumed about a size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dovetail.deferred import deferred

_shapes = deferred("torch.fx.experimental.symbolic_shapes")


def viewed(x: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    """The result of `x.view(...)`, where a size is a symbol, as ATen makes it. A size is the number 1."""
    try:
        stride = _view_strides(tuple(x.shape), x.stride(), tuple(result.shape))
    except _NotKnown:
        return result
    if stride is None or all(map(_is_one, stride, result.stride())):
        return result
    return x.as_strided(result.shape, stride)


class _NotKnown(Exception):
    pass


def _is(fact: Any) -> bool:
    """Whether a fact about sizes holds. Raises: _NotKnown where that is a matter of the size."""
    if isinstance(fact, bool):
        return fact
    if _shapes.statically_known_true(fact):
        return True
    if _shapes.statically_known_true(torch.sym_not(fact)):
        return False
    raise _NotKnown


def _is_one(a: Any, b: Any) -> bool:
    """Whether two sizes are one for sure."""
    return bool(a == b if type(a) is type(b) is int else _shapes.statically_known_true(a == b))


def _view_strides(shape: Sequence[Any], stride: Sequence[Any], wanted: Sequence[Any]) -> tuple[Any, ...] | None:
    """As `kernel_strides.view_strides`, for symbols. Raises: _NotKnown."""
    if not shape or any(_is(size == 0) for size in shape):
        return None
    found: list[Any] = [0] * len(wanted)
    at, step, chunk, made = len(wanted) - 1, stride[-1], 1, 1
    for dim in reversed(range(len(shape))):
        chunk *= shape[dim]
        if dim > 0 and (_is(shape[dim - 1] == 1) or _is(stride[dim - 1] == chunk * step)):
            continue
        while at >= 0 and (_is(made < chunk) or _is(wanted[at] == 1)):
            found[at] = made * step
            made *= wanted[at]
            at -= 1
        if not _is(made == chunk):
            return None
        if dim > 0:
            step, chunk, made = stride[dim - 1], 1, 1
    return tuple(found) if at == -1 else None
