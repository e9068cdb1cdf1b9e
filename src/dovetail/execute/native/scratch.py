"""Memory for trials, beside torch's allocator: a first call takes no more of that than its program does.

Tensors lie as torch's own do, so that kernels see the same addresses.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence

import numpy
import torch

_ALIGNMENT = 64  # c10's
_LEAST = 1024  # elements
_COMPARE = ctypes.CDLL(None).memcmp
_COMPARE.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]


def scratch(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A tensor of zeros, in memory of NumPy's."""
    size = math.prod(shape) * dtype.itemsize
    block = numpy.zeros(size + _ALIGNMENT, dtype=numpy.uint8)
    start = -block.ctypes.data % _ALIGNMENT
    return torch.from_numpy(block[start : start + size]).view(dtype).view(tuple(shape))


def copied(tensor: torch.Tensor) -> torch.Tensor:
    """A copy whose elements lie in order."""
    return scratch(tensor.shape, tensor.dtype).copy_(tensor)


class Room:
    """Memory for one tensor after the other: each lies where the last one lay."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._block = scratch((_LEAST,), dtype)

    def tensor(self, shape: Sequence[int], start: int = 0, gap: int = 0) -> torch.Tensor:
        """A tensor of whatever was there. start: elements before it. gap: elements between its rows."""
        rows = math.prod(shape[:-1])
        wanted = start + math.prod(shape) + gap * rows
        if self._block.numel() < wanted:
            self._block = scratch((wanted,), self._block.dtype)
        strides = [math.prod(shape[dim + 1 : -1]) * (shape[-1] + gap) for dim in range(len(shape) - 1)]
        strides += [1] * (len(shape) > 0)
        return self._block.as_strided(shape, strides, start)


def have_same_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors of one dtype and shape are known to hold the same bytes; False where they lie with gaps."""
    if not (a.is_contiguous() and b.is_contiguous()):
        return False
    return not _COMPARE(a.data_ptr(), b.data_ptr(), a.nbytes)
