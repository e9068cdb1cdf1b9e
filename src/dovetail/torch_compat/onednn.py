"""oneDNN's kernels over weights that were laid out for them once.

Torch has these operators where it was built with oneDNN. They take a dense tensor or a *packed* weight, whose
layout only oneDNN knows: it has no strides, and is good for inputs of any batch size on this machine alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch

_NAMES = (
    "_reorder_linear_weight",
    "_linear_pointwise",
    "_reorder_convolution_weight",
    "_convolution_pointwise",
)

# Activations that oneDNN applies to its results as eager would, NaN and infinities included: by name, its own name and
# variant. Its relu and what clamps (hardtanh, hardsigmoid) turn NaN into a number, so they are missing.
_FUSED: dict[str, tuple[str, str]] = {
    "gelu": ("gelu", "none"),
    "gelu_tanh": ("gelu", "tanh"),
    "silu": ("swish", ""),
}


@cache
def has_onednn() -> bool:
    """Whether this torch has oneDNN and its operators over packed weights."""
    return torch.backends.mkldnn.is_available() and all(hasattr(torch.ops.mkldnn, name) for name in _NAMES)


def is_packed(weight: torch.Tensor) -> bool:
    """Whether a tensor is a packed weight."""
    return weight.layout is _PACKED


_PACKED: torch.layout = torch._mkldnn


def fuses(activation: str) -> bool:
    """Whether an activation (or "none") is applied by the kernels, with the results that eager has."""
    return activation == "none" or activation in _FUSED


def pack_linear_weight(weight: torch.Tensor, rows: int | None) -> torch.Tensor:
    """A packed copy of a weight (outputs, inputs) of float32. rows: how many the input is expected to have."""
    packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, rows)
    return packed


def packed_linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, activation: str = "none"
) -> torch.Tensor:
    """`activation(x @ weight.t() + bias)`; contiguous. activation: one that `fuses`."""
    name, variant = _FUSED.get(activation, ("none", ""))
    made: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, name, [], variant)
    return made


def pack_conv_weight(
    weight: torch.Tensor,
    padding: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    input_size: Sequence[int] | None,
) -> torch.Tensor:
    """A packed copy of a convolution's weight of float32. input_size: the shape that the input is expected to have."""
    reorder: Callable[..., torch.Tensor] = torch.ops.mkldnn._reorder_convolution_weight
    return reorder(weight, padding, stride, dilation, groups, input_size)


def packed_conv(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    padding: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    *,
    activation: str = "none",
    addend: torch.Tensor | None = None,
) -> torch.Tensor:
    """`activation(conv(x, weight, bias))` or `conv(x, weight, bias) + addend`, channels last whatever `x` is.

    activation: one that `fuses`; "none" if there is an addend, which has the shape of the result.
    """
    name, variant = _FUSED.get(activation, ("none", ""))
    op: Any = torch.ops.mkldnn._convolution_pointwise
    if addend is None:
        made: torch.Tensor = op(x, weight, bias, padding, stride, dilation, groups, name, [], variant)
        return made
    sums: torch.Tensor = op.binary(
        x, addend, weight, bias, padding, stride, dilation, groups, "add", None, None, [], None
    )
    return sums
