"""Checks of tensors at the edge, before any work."""

from __future__ import annotations

import torch

from dovetail.errors import UnsupportedDevice, UnsupportedTensor

_DEVICES = ("cpu", "cuda")


def check_tensor(name: str, tensor: torch.Tensor) -> None:
    """Raise unless dovetail supports the tensor's layout, class and device."""
    if tensor.layout != torch.strided:
        raise UnsupportedTensor(name=name, kind=f"a {tensor.layout} tensor", hint="convert it with .to_dense()")
    if tensor.is_nested:
        raise UnsupportedTensor(name=name, kind="a nested tensor", hint="use padded tensors")
    if tensor.is_quantized:
        raise UnsupportedTensor(name=name, kind="a quantized tensor", hint="dequantize it first")
    if tensor.device.type not in _DEVICES:
        raise UnsupportedDevice(name=name, device=str(tensor.device))
