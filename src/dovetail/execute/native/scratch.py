"""Memory for trials, beside torch's allocator: a first call takes no more of that than its program does.

Tensors lie as torch's own do, so that kernels see the same addresses.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy
import torch

_ALIGNMENT = 64  # c10's


def scratch(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A tensor of zeros, in memory of NumPy's."""
    size = math.prod(shape) * dtype.itemsize
    block = numpy.zeros(size + _ALIGNMENT, dtype=numpy.uint8)
    start = -block.ctypes.data % _ALIGNMENT
    return torch.from_numpy(block[start : start + size]).view(dtype).view(tuple(shape))


def copied(tensor: torch.Tensor) -> torch.Tensor:
    """A copy whose elements lie in order."""
    return scratch(tensor.shape, tensor.dtype).copy_(tensor)
