"""oneDNN's products of 8-bit integers, and which processors compute in few bits as they should.

A processor without instructions for sums of 8-bit products (VNNI) adds pairs of them in 16 bits, and clamps what does
not fit: oneDNN's results are wrong there, without a word. So its kernel is tried with the largest numbers there are.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from dovetail.torch_compat.onednn import has_onednn

MOST_TERMS = 1 << 16
"""A sum of more products of 8-bit numbers may not fit in 32 bits."""

ZERO_POINT = 128
"""What stands for zero among the unsigned 8-bit numbers of a product; oneDNN is slower with 0 than with this."""

_NAMES = ("qlinear_prepack", "qlinear_pointwise")


def pack_int8_weight(weight: torch.Tensor, rows: int | None) -> torch.Tensor:
    """A packed copy of a weight (outputs, inputs) of int8. rows: how many the input is expected to have."""
    pack: Callable[..., torch.Tensor] = torch.ops.onednn.qlinear_prepack
    return pack(weight.contiguous(), None if rows is None else [rows, weight.shape[1]])


def int8_product(x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """`((x - 128) @ weight.t()) * scales` in float32; the sums are exact.

    x: (rows, inputs) of uint8, contiguous. weight: packed. scales: (outputs,) of float32.
    """
    zeros = _zeros(scales.shape[0])
    multiply: Any = torch.ops.onednn.qlinear_pointwise
    made: torch.Tensor = multiply(
        x, 1.0, ZERO_POINT, weight, scales, zeros, None, 1.0, 0, torch.float32, "none", [], ""
    )
    return made


@cache
def _zeros(count: int) -> torch.Tensor:
    """What stands for zero in each row of a weight."""
    with torch.inference_mode(False):
        return torch.zeros(count, dtype=torch.int64)


@cache
def multiplies_int8() -> bool:
    """Whether oneDNN multiplies 8-bit integers here without losing any bit of a sum."""
    if not has_onednn() or not all(hasattr(torch.ops.onednn, name) for name in _NAMES):
        return False
    inner, outer = 256, 32
    weight = torch.full((outer, inner), 127, dtype=torch.int8)
    weight[1::2] = -127
    x = torch.full((3, inner), 255, dtype=torch.uint8)
    x[1] = 0
    x[2, ::2] = 0
    exact = (x.double() - ZERO_POINT) @ weight.double().t()
    try:
        made = int8_product(x, pack_int8_weight(weight, 3), torch.ones(outer))
    except RuntimeError:  # no kernel for this processor
        return False
    return torch.equal(made.double(), exact)


@cache
def multiplies_bfloat16() -> bool:
    """Whether oneDNN multiplies bfloat16 here with instructions for it; it is slower than float32 without."""
    if not has_onednn() or not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return False
    flags: Any = getattr(torch.cpu, "get_capabilities", dict)()
    if flags.get("architecture", "x86_64") != "x86_64":
        return True
    # MKL and oneDNN may be told to use less than there is; ATen is told so by the same people.
    has_it = bool(flags.get("avx512_bf16", torch.cpu._is_avx512_bf16_supported()))
    return has_it and torch.backends.cpu.get_cpu_capability() == "AVX512"
