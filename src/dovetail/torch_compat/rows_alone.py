"""Kernels that treat each row by itself: some of the rows in one call give the bits that all of them give.

Two rows at least: with several threads, `_softmax_backward_data` sums a single row in parts, and rounds otherwise.
Nothing in torch promises that, so it is tried for each dtype and number of threads before it is used: matrices of many
shapes, with endless and undefined numbers among them, once whole and once cut at every kind of place.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from itertools import accumulate
from typing import TypeAlias

import torch

from dovetail.torch_compat.dispatch import without_modes

_SHAPES = ((5, 7), (34, 33), (40, 1000), (9, 4099))
_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)

_aten = torch.ops.aten
_Run: TypeAlias = Callable[[torch.Tensor, slice], torch.Tensor]
"""Of numbers, and which of their rows."""


def _normalized(op: Callable[..., torch.Tensor]) -> _Run:
    return lambda x, rows: op(x[rows], -1, False)


def _backward(op: Callable[..., torch.Tensor]) -> _Run:
    return lambda x, rows: op(x[rows], x.flip(-1).sigmoid()[rows], -1, x.dtype)


def _of_loss(x: torch.Tensor, rows: slice) -> torch.Tensor:
    target = torch.arange(x.shape[0], device="cpu") * 5 % x.shape[1]
    target[0] = -100
    loss, total = torch.tensor([1.7, x.shape[0] - 1], dtype=x.dtype, device="cpu").unbind()
    return _aten.nll_loss_backward.default(loss, x[rows], target[rows], None, 1, -100, total)


_RUNS: dict[str, _Run] = {
    "_softmax": _normalized(_aten._softmax.default),
    "_log_softmax": _normalized(_aten._log_softmax.default),
    "_softmax_backward_data": _backward(_aten._softmax_backward_data.default),
    "_log_softmax_backward_data": _backward(_aten._log_softmax_backward_data.default),
    "nll_loss_backward": _of_loss,
}


def treats_rows_alone(name: str, dtype: torch.dtype) -> bool:
    """Whether an operator of torch, along the last dimension of contiguous tensors on the CPU, gives each row the same
    bits whatever other rows are there; one other at least, see `block_sizes`.
    """
    return name in _RUNS and dtype in _DTYPES and _gives_the_same(name, dtype, torch.get_num_threads())


@cache
def _gives_the_same(name: str, dtype: torch.dtype, threads: int) -> bool:
    try:
        with without_modes(), torch.no_grad():
            return all(_same(_RUNS[name], _numbers(shape, dtype)) for shape in _SHAPES)
    except (RuntimeError, TypeError):  # another torch takes other arguments, or has no kernel for the dtype
        return False


def _same(run: _Run, x: torch.Tensor) -> bool:
    whole = run(x, slice(None))
    for each in (2, 3, 16):
        sizes = block_sizes(x.shape[0], each)
        if len(sizes) in range(2, 18):
            ends = list(accumulate(sizes))
            parts = [run(x, slice(end - size, end)) for size, end in zip(sizes, ends, strict=True)]
            if not torch.equal(torch.cat(parts).view(torch.uint8), whole.view(torch.uint8)):
                return False
    return True


def block_sizes(rows: int, each: int) -> list[int]:
    """How many rows each block has, of `each` rows or so: never a single one, but where there is no other."""
    each = max(each, 2)
    sizes = [min(each, rows - start) for start in range(0, rows, each)]
    if len(sizes) > 1 and sizes[-1] == 1:
        sizes[-2:] = [each + 1]
    return sizes


def _numbers(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Numbers of both signs and many sizes; an undefined and an endless one in rows of their own."""
    x = (torch.arange(math.prod(shape), dtype=torch.float64, device="cpu") * 0.7).sin().mul(30).to(dtype).view(shape)
    x[0, 0], x[1, -1] = float("nan"), float("-inf")
    return x


def self_check() -> str | None:
    """Return None when the operators are there, else one sentence saying what differs."""
    missing = [name for name in _RUNS if not hasattr(_aten, name)]
    return f"aten::{missing[0]} is missing" if missing else None
