"""Primitives over packed weights: weights that were laid out once for the kernels that read them.

    packed = prims.PACK_LINEAR(weight, rows)                     # once, when a program is frozen
    y = prims.packed_linear("gelu")(x, packed, bias)             # gelu(x @ weight.t() + bias)
    z = prims.packed_conv("relu")(x, packed, bias, padding, stride, dilation, groups, addend)

A packed weight is opaque: it has the weight's shape, no strides, and cannot be written to a file. Where torch has no
oneDNN, packing copies, and the primitives run torch's own operators; results lie in memory as they do with oneDNN.

An activation is applied by the kernel if that gives what eager gives (`torch_compat.onednn.fuses`), else in place on
its result, which nobody else has seen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from dovetail.ir.prim import Prim
from dovetail.torch_compat import onednn
from dovetail.torch_compat.fakes import is_fake

_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def _hardtanh_6(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.hardtanh_(x, 0.0, 6.0)


def _gelu(x: torch.Tensor) -> torch.Tensor:
    made: torch.Tensor = torch.ops.aten.gelu_.default(x)
    return made


def _gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    made: torch.Tensor = torch.ops.aten.gelu_.default(x, approximate="tanh")
    return made


def _silu(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.silu(x, inplace=True)


def _hardswish(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.hardswish(x, inplace=True)


def _hardsigmoid(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.hardsigmoid(x, inplace=True)


# By name, on a tensor that belongs to the caller.
_ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": torch.relu_,
    "relu6": _hardtanh_6,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "silu": _silu,
    "sigmoid": torch.sigmoid_,
    "tanh": torch.tanh_,
    "hardswish": _hardswish,
    "hardsigmoid": _hardsigmoid,
}

ACTIVATIONS = frozenset({"none", *_ACTIVATIONS})


# --- linear -----------------------------------------------------------------------------------------------------------


def _pack_linear(weight: torch.Tensor, rows: int | None = None) -> torch.Tensor:
    if is_fake(weight) or weight.is_meta or not onednn.has_onednn():
        return weight.clone(memory_format=torch.contiguous_format)
    return onednn.pack_linear_weight(weight, rows)


PACK_LINEAR = Prim("pack_linear", _pack_linear, "prims.PACK_LINEAR")


@dataclass(frozen=True, slots=True)
class PackedLinear:
    """`activation(x @ weight.t() + bias)` for a packed weight (outputs, inputs) and any leading sizes of `x`."""

    activation: str

    def __call__(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        if not onednn.is_packed(weight):
            return applied(self.activation, torch.nn.functional.linear(x.contiguous(), weight, bias))
        if onednn.fuses(self.activation):
            return onednn.packed_linear(x, weight, bias, self.activation)
        return applied(self.activation, onednn.packed_linear(x, weight, bias))


def _packed_for_rows(args: list[Any]) -> list[Any]:
    x, weight, *others = args
    return [x, _pack_linear(weight, x.numel() // max(1, x.shape[-1])), *others]


@cache
def packed_linear(activation: str) -> Prim:
    """The primitive `(x, packed, bias=None)`; see `PackedLinear`. activation: of `ACTIVATIONS`.

    Raises: ValueError for an unknown activation.
    """
    name = "packed_linear" if activation == "none" else f"packed_linear_{activation}"
    run, python = PackedLinear(checked_activation(activation)), f"prims.packed_linear({activation!r})"
    return Prim(name, run, python, takes_memory=True, prepared=_packed_for_rows)


# --- convolution ------------------------------------------------------------------------------------------------------


def _pack_conv(
    weight: torch.Tensor,
    padding: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    input_size: Sequence[int] | None = None,
) -> torch.Tensor:
    if is_fake(weight) or weight.is_meta or not onednn.has_onednn():
        return weight.clone(memory_format=torch.contiguous_format)
    return onednn.pack_conv_weight(weight, padding, stride, dilation, groups, input_size)


PACK_CONV = Prim("pack_conv", _pack_conv, "prims.PACK_CONV")


@dataclass(frozen=True, slots=True)
class PackedConv:
    """`activation(convolution(x, weight, bias) + addend)` for a packed weight of two or three dimensions of space.

    The result has its channels last, whatever `x` is.
    """

    activation: str

    def __call__(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        padding: Sequence[int],
        stride: Sequence[int],
        dilation: Sequence[int],
        groups: int,
        addend: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if not onednn.is_packed(weight):
            made = self._plain(x, weight, bias, padding, stride, dilation, groups)
            return applied(self.activation, made if addend is None else made.add_(addend))
        if addend is None and onednn.fuses(self.activation):
            return onednn.packed_conv(x, weight, bias, padding, stride, dilation, groups, activation=self.activation)
        made = onednn.packed_conv(x, weight, bias, padding, stride, dilation, groups, addend=addend)
        return applied(self.activation, made)

    def _plain(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        padding: Sequence[int],
        stride: Sequence[int],
        dilation: Sequence[int],
        groups: int,
    ) -> torch.Tensor:
        made = torch.convolution(x, weight, bias, stride, padding, dilation, False, [0] * len(padding), groups)
        laid_out = torch.empty_like(made, memory_format=_CHANNELS_LAST[made.dim()])
        return laid_out.copy_(made)


def _packed_for_input(args: list[Any]) -> list[Any]:
    x, weight, bias, padding, stride, dilation, groups, *others = args
    packed = _pack_conv(weight, padding, stride, dilation, groups, x.shape)
    return [x, packed, bias, padding, stride, dilation, groups, *others]


@cache
def packed_conv(activation: str) -> Prim:
    """The primitive `(x, packed, bias, padding, stride, dilation, groups, addend=None)`; see `PackedConv`.

    activation: of `ACTIVATIONS`. Raises: ValueError for an unknown activation.
    """
    name = "packed_conv" if activation == "none" else f"packed_conv_{activation}"
    run, python = PackedConv(checked_activation(activation)), f"prims.packed_conv({activation!r})"
    return Prim(name, run, python, takes_memory=True, prepared=_packed_for_input)


def checked_activation(activation: str) -> str:
    """The activation. Raises: ValueError unless it is of `ACTIVATIONS`."""
    if activation not in ACTIVATIONS:
        raise ValueError(f"no activation {activation!r}; there are {', '.join(sorted(ACTIVATIONS))}")
    return activation


def applied(activation: str, made: torch.Tensor) -> torch.Tensor:
    """A tensor that nobody else has seen, with an activation of `ACTIVATIONS` applied in place."""
    return made if activation == "none" else _ACTIVATIONS[activation](made)
