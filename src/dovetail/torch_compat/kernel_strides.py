"""The strides that torch's kernels give, computed as ATen computes them, dimensions of size 1 included.

Fakes take the strides of dimensions of size 1 for unimportant. They are not: `suggest_memory_format` looks at them, and
by what it says, an image of batch size 1 is read with its channels first or last.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

Layout: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]  # shape and strides
_CHANNELS_LAST = (0, 2, 3, 1)


def iterator_strides(shape: Sequence[int], operands: Sequence[Layout]) -> tuple[int, ...]:
    """Strides of a new result of `TensorIterator`, which reads these operands in this order.

    Source: `fast_set_up`, `reorder_dimensions` and `invert_perm` in ATen/TensorIterator.cpp.
    """
    if all(own == tuple(shape) for own, _ in operands):
        strides = _fast(shape, operands)
        if strides is not None:
            return strides
    return _packed(shape, _ordered(shape, [_broadcast(shape, *operand) for operand in operands]))


def like_strides(shape: Sequence[int], stride: Sequence[int]) -> tuple[int, ...]:
    """Strides of a new tensor that is to lie as another one. Source: `empty_like` in ATen/TensorFactories.cpp, and
    `infer_dense_strides` in ATen/ExpandUtils.cpp.
    """
    if _is_packed(shape, stride, _by_stride(shape, stride)):
        return tuple(stride)
    return _packed(shape, _ordered(shape, [stride]))


def view_strides(shape: Sequence[int], stride: Sequence[int], wanted: Sequence[int]) -> tuple[int, ...] | None:
    """Strides of a view of another shape; None where there is none. Source: `computeStride` in ATen/TensorUtils.cpp."""
    if not shape or 0 in shape:
        return None
    found = [0] * len(wanted)
    at, step, chunk, made = len(wanted) - 1, stride[-1], 1, 1
    for dim in reversed(range(len(shape))):
        chunk *= shape[dim]
        if dim > 0 and (shape[dim - 1] == 1 or stride[dim - 1] == chunk * step):
            continue
        while at >= 0 and (made < chunk or wanted[at] == 1):
            found[at] = made * step
            made *= wanted[at]
            at -= 1
        if made != chunk:
            return None
        if dim > 0:
            step, chunk, made = stride[dim - 1], 1, 1
    return tuple(found) if at == -1 else None


def expand_strides(
    shape: Sequence[int], stride: Sequence[int], wanted: Sequence[int], made: Sequence[int]
) -> tuple[int, ...] | None:
    """Strides of a tensor that is expanded to symbolic sizes; None where `made` has them. Made by fakes: these differ
    where a size is 1. Source: `inferExpandGeometry` in ATen/ExpandUtils.cpp."""
    found = list(made)
    for dim in reversed(range(len(wanted))):
        own = dim - (len(wanted) - len(shape))
        if type(wanted[dim]) is int and wanted[dim] == 1:
            found[dim] = 0 if not shape else stride[own] if own >= 0 else wanted[dim + 1] * found[dim + 1]
    differs = any(type(a) is type(b) is int and a != b for a, b in zip(found, made, strict=True))
    return tuple(found) if differs else None


def _fast(shape: Sequence[int], operands: Sequence[Layout]) -> tuple[int, ...] | None:
    ranges = list(reversed(range(len(shape))))
    if all(_is_packed(own, stride, ranges) for own, stride in operands):
        return _packed(shape, ranges)
    last = list(reversed(_CHANNELS_LAST))
    if len(shape) == 4 and all(_is_packed(own, stride, last) for own, stride in operands):
        return _packed(shape, last)
    first = operands[0][1]
    if all(stride == first for _, stride in operands) and _is_packed(shape, first, _by_stride(shape, first)):
        return first
    return None


def _by_stride(shape: Sequence[int], stride: Sequence[int]) -> list[int]:
    return sorted(range(len(shape)), key=lambda dim: (stride[dim], shape[dim]))


def _is_packed(shape: Sequence[int], stride: Sequence[int], order: Sequence[int]) -> bool:
    """Whether the dimensions, from the fastest on, follow each other without gaps; those of size 1 do not count."""
    wide = [dim for dim in order if shape[dim] != 1]
    steps = [1, *(stride[dim] * shape[dim] for dim in wide)]
    return all(stride[dim] == step for dim, step in zip(wide, steps, strict=False))


def _packed(shape: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    found, step = [0] * len(shape), 1
    for dim in order:
        found[dim] = step
        step *= max(shape[dim], 1)
    return tuple(found)


def _broadcast(shape: Sequence[int], own: Sequence[int], stride: Sequence[int]) -> tuple[int, ...]:
    missing = len(shape) - len(own)
    wide = zip(own, stride, shape[missing:], strict=True)
    return (*[0] * missing, *(0 if size == 1 and wanted != 1 else step for size, step, wanted in wide))


def _ordered(shape: Sequence[int], operands: Sequence[Sequence[int]]) -> list[int]:
    """The dimensions, from the fastest on, as operands with these strides tell."""
    order = list(reversed(range(len(shape))))
    for position in range(1, len(order)):
        place = position
        for other in reversed(range(position)):
            comes_after = _compare(shape, operands, order[other], order[place])
            if comes_after < 0:
                break
            if comes_after > 0:
                order[other], order[place] = order[place], order[other]
                place = other
    return order


def _compare(shape: Sequence[int], operands: Sequence[Sequence[int]], a: int, b: int) -> int:
    """1 if dimension `a` is to be slower than `b`, -1 if it is faster, 0 if nothing tells."""
    for stride in operands:
        if stride[a] == 0 or stride[b] == 0:
            continue
        if stride[a] != stride[b]:
            return 1 if stride[a] > stride[b] else -1
        if shape[a] > shape[b]:
            return 1
    return 0
