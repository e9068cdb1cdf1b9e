"""Operators that resample images: torch's fakes of some take plain sizes only, and give strides that kernels do not.

Source: UpSample.h and UpSample*.cpp of torch: results lie in the memory format of what is read, those of one dimension
in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._prims_common import suggest_memory_format

_aten: Any = torch.ops.aten
_NAMES = (
    *("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d"),
    *("_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d"),
    *("upsample_linear1d", "upsample_bilinear2d", "upsample_bicubic2d", "upsample_trilinear3d"),
    *("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"),
)
_FORWARD = frozenset(getattr(_aten, name).default for name in _NAMES)
_BACKWARD = frozenset(getattr(_aten, f"{name}_backward").default for name in _NAMES)
RESAMPLING: dict[Any, Any] = {getattr(torch._C._nn, name): getattr(_aten, name).default for name in _NAMES}
"""By function of Python's, its operator for a known size: `(image, size, *options, *factors)`."""


def resampled_on_fakes(op: Any, args: Sequence[Any]) -> torch.Tensor | None:
    """What an operator gives on fakes on the CPU, if it resamples images. Sizes that C++ refuses are left to torch."""
    if op is _aten.affine_grid_generator.default and args[0].device.type == "cpu":  # torch's limits symbolic batches
        grid: torch.Tensor = args[0].new_empty((args[1][0], *args[1][2:], len(args[1]) - 2))
        return grid
    if op not in _FORWARD and op not in _BACKWARD:
        return None
    given: torch.Tensor = args[0]
    sizes = [*args[2]] if op in _BACKWARD else [*given.shape[:2], *args[1]]
    is_symbolic = any(isinstance(size, torch.SymInt) for size in (*given.shape, *sizes))
    is_empty = type(given.shape[0]) is int and given.shape[0] == 0  # a batch, for which torch's fakes of some fail
    is_empty = is_empty and not is_symbolic and 0 not in (*given.shape[1:], *sizes[1:])
    if given.device.type != "cpu" or not (is_symbolic or is_empty) or len(sizes) != given.dim():
        return None
    return given.new_empty(sizes).to(memory_format=suggest_memory_format(given))
