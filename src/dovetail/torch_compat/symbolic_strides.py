"""Strides of tensors whose sizes are symbols: those that elementwise kernels give, dimensions of size 1 included."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from dovetail.deferred import deferred
from dovetail.torch_compat.kernel_strides import (
    broadcast_strides,
    iterator_strides,
    layouts_read,
    order_of_dimensions,
    packed_strides,
)

_STAND_IN = 720  # for a size that is a symbol
_sympy = deferred("sympy")


def strides_of_any_size(operands: Sequence[Any], made: torch.Tensor) -> tuple[Any, ...] | None:
    """Strides of a new result of `TensorIterator`; None where sizes decide which of several layouts it has.

    Numbers stand in for the symbols, and then for the strides what gives the same for these numbers.
    """
    tensors = [operand for operand in operands if isinstance(operand, torch.Tensor)]
    found = {symbol for tensor in (made, *tensors) for size in _numbers_of(tensor) for symbol in _symbols(size)}
    symbols = sorted(found, key=str)
    seen = [dict(zip(symbols, numbers, strict=True)) for numbers in _stand_ins(len(symbols))]
    try:
        told = [_told_at(at, operands, made) for at in seen]
    except _NoNumber:
        return None
    orders = [order for _, order in told]
    like = [tensor.stride() for tensor in (*tensors, made) if tensor.dim() == made.dim()]
    packed = [packed_strides(made.shape, order) for order in (*orders, *_formats(made.dim()))]
    for stride in (*like, *packed):
        if all(tuple(_at(step, at) for step in stride) == wanted for at, (wanted, _) in zip(seen, told, strict=True)):
            return tuple(stride)
    return None


def lies_in_a_format(tensor: torch.Tensor) -> bool:
    """Whether a tensor is contiguous, or has its channels last, as far as that is known where sizes are symbols."""
    symbols = sorted({symbol for size in _numbers_of(tensor) for symbol in _symbols(size)}, key=str)
    at = dict(zip(symbols, _stand_ins(len(symbols))[0], strict=True))
    try:
        shape, stride = ([_at(number, at) for number in part] for part in (tensor.shape, tensor.stride()))
    except _NoNumber:
        return True
    if 0 in shape:
        return True
    wanted = (packed_strides(shape, order) for order in _formats(len(shape)))
    return any(all(size == 1 or a == b for size, a, b in zip(shape, stride, found, strict=True)) for found in wanted)


def is_one_number(a: int | torch.SymInt, b: int | torch.SymInt) -> bool:
    """Whether two sizes are one for sure; nothing is assumed to find out."""
    if isinstance(a, torch.SymInt) and isinstance(b, torch.SymInt):
        return bool(a.node.expr == b.node.expr)
    return type(a) is type(b) is int and a == b


class _NoNumber(Exception):
    """A size is no whole number where numbers stand in for symbols."""


def _told_at(at: Mapping[Any, int], operands: Sequence[Any], made: torch.Tensor) -> tuple[tuple[int, ...], list[int]]:
    """The strides of a result, and the order of its dimensions from the fastest on, where symbols are numbers."""

    def known(tensor: torch.Tensor) -> torch.Tensor:
        shape, stride = ([_at(number, at) for number in part] for part in (tensor.shape, tensor.stride()))
        return torch.empty_strided(shape, stride, dtype=tensor.dtype, device="meta")

    shape = tuple(_at(size, at) for size in made.shape)
    layouts = layouts_read([known(each) if isinstance(each, torch.Tensor) else each for each in operands], made)
    return iterator_strides(shape, layouts), order_of_dimensions(
        shape, [broadcast_strides(shape, *layout) for layout in layouts]
    )


def _numbers_of(tensor: torch.Tensor) -> Sequence[Any]:
    return (*tensor.shape, *tensor.stride())


def _symbols(number: Any) -> Iterable[Any]:
    return () if type(number) is int else number.node.expr.free_symbols


def _at(number: Any, at: Mapping[Any, int]) -> int:
    """A size, where symbols are these numbers. Raises: _NoNumber."""
    if type(number) is int:
        return number
    expr = number.node.expr
    found = at.get(expr)
    if found is None:
        value = expr.xreplace({symbol: _sympy.Integer(at[symbol]) for symbol in expr.free_symbols})
        if not value.is_Integer:
            raise _NoNumber
        found = int(value)
    return found


def _stand_ins(count: int) -> tuple[Sequence[int], Sequence[int]]:
    """Numbers for symbols, rising and falling: large ones, which many others divide, as sizes are halved."""
    rising = [_STAND_IN * (place + 1) for place in range(count)]
    return rising, rising[::-1] if count > 1 else [2 * _STAND_IN] * count


def _formats(rank: int) -> list[list[int]]:
    """The orders of dimensions, from the fastest on, that memory formats have: contiguous, and with channels last."""
    contiguous = list(reversed(range(rank)))
    return [contiguous, [1, *(dim for dim in contiguous if dim != 1)]] if rank in (4, 5) else [contiguous]
