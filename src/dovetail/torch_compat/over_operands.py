"""Kernels whose result may lie in the memory of an operand, with the same bits: they read a row before they write it.

Nothing in torch promises that, so it is tried for each dtype before it is used: rows of many lengths, with endless and
undefined numbers among them, once into new memory and once over the operand. As a first call does so, it takes little
memory: rows are as many as threads need to share them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import TypeAlias

import torch

from dovetail.torch_compat.dispatch import without_modes

_SHAPES = ((1, 1), (3, 7), (5, 33), (2, 3, 17), (9, 128), (3, 1000), (1, 4099))
_SHARED_SHAPES = ((260, 128), (33, 1000))  # among threads: torch gives 32,768 elements and more to several
_DTYPES = (torch.float32, torch.float64, torch.bfloat16)


def _normalized(op: Callable[..., torch.Tensor], x: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
    return op(x, -1, False) if out is None else op(x, -1, False, out=out)


def _backward(op: Callable[..., torch.Tensor], x: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
    y = _aten._log_softmax.default(x.flip(-1), -1, False)
    return op(x, y, -1, x.dtype) if out is None else op(x, y, -1, x.dtype, out=out)


_aten = torch.ops.aten
_Run: TypeAlias = Callable[[Callable[..., torch.Tensor], torch.Tensor, torch.Tensor | None], torch.Tensor]
_RUNS: dict[str, _Run] = {
    "_softmax": _normalized,
    "_log_softmax": _normalized,
    "_log_softmax_backward_data": _backward,
}


def result_may_lie_over_first(name: str, dtype: torch.dtype) -> bool:
    """Whether an operator of torch, along the last dimension of contiguous tensors on the CPU, gives the same bits in
    the memory of its first operand as in new memory.
    """
    if name not in _RUNS or dtype not in _DTYPES:
        return False
    return _gives_the_same(name, dtype, torch.get_num_threads())


@cache
def _gives_the_same(name: str, dtype: torch.dtype, threads: int) -> bool:
    packet = getattr(_aten, name)
    try:
        with without_modes(), torch.no_grad():
            shapes = _SHAPES if threads == 1 else _SHAPES + _SHARED_SHAPES
            return all(_same(_RUNS[name], packet, _numbers(shape, dtype)) for shape in shapes)
    except (RuntimeError, TypeError):  # another torch takes other arguments
        return False


def _same(run: _Run, packet: Callable[..., torch.Tensor], x: torch.Tensor) -> bool:
    expected = run(packet, x, None)
    address = x.data_ptr()
    found = run(packet, x, x)
    return found.data_ptr() == address and torch.equal(found.view(torch.uint8), expected.view(torch.uint8))


def _numbers(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Numbers of both signs and many sizes; an undefined and an endless one in rows of their own, if there are rows."""
    x = (
        torch.arange(math.prod(shape), dtype=torch.float64, device="cpu")
        .mul_(0.7)
        .sin_()
        .mul_(30)
        .to(dtype)
        .view(shape)
    )
    if shape[0] > 2:
        x[0, 0], x[1, -1] = float("nan"), float("-inf")
    return x


def self_check() -> str | None:
    """Return None when the operators are there and take `out=`, else one sentence saying what differs."""
    for name in _RUNS:
        if not hasattr(getattr(_aten, name), "out"):
            return f"aten::{name} has no overload that takes out="
    return None
