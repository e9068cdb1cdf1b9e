"""Checks of `torch_compat.onednn`."""

from __future__ import annotations

import torch

from dovetail.torch_compat import onednn
from dovetail.torch_compat.checks.difference import first_difference

_functional = torch.nn.functional
_CLOSE = 1e-5


def _ramp(*shape: int) -> torch.Tensor:
    count = torch.Size(shape).numel()
    return torch.linspace(-1, 1, count).view(shape)


def _far(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape != b.shape or not bool(torch.allclose(a, b, atol=_CLOSE))


def check_has_onednn() -> str | None:
    """The operators are there if torch was built with oneDNN; without, nothing here is used."""
    available = torch.backends.mkldnn.is_available()
    return first_difference(("the claim that oneDNN's operators are there", onednn.has_onednn(), available))


def check_is_packed() -> str | None:
    """Packed and dense weights are told apart."""
    if not onednn.has_onednn():
        return None
    weight = _ramp(4, 3)
    found = (onednn.is_packed(weight), onednn.is_packed(onednn.pack_linear_weight(weight, 2)))
    return first_difference(("a dense and a packed weight", found, (False, True)))


def check_fuses() -> str | None:
    """What is applied by the kernels keeps NaN, and what the table leaves out does not claim to."""
    if not onednn.has_onednn():
        return None
    bias = torch.tensor([float("nan"), float("inf"), 1.0])
    packed, x = onednn.pack_linear_weight(torch.zeros(3, 2), None), torch.zeros(1, 2)
    names = ("none", "gelu", "gelu_tanh", "silu", "relu")
    kept = [bool(onednn.packed_linear(x, packed, bias, name)[0, 0].isnan()) for name in names if onednn.fuses(name)]
    return first_difference(
        ("the fused activations", [onednn.fuses(name) for name in names], [True, True, True, True, False]),
        ("what NaN becomes", all(kept), True),
    )


def check_pack_linear_weight() -> str | None:
    """A packed weight serves inputs of other numbers of rows than it was packed for, and is a copy."""
    if not onednn.has_onednn():
        return None
    weight, x = _ramp(4, 3), _ramp(5, 3)
    packed = onednn.pack_linear_weight(weight, 2)
    expected = _functional.linear(x, weight)
    weight.zero_()
    return first_difference(("a difference from eager", _far(onednn.packed_linear(x, packed, None), expected), False))


def check_packed_linear() -> str | None:
    """The result is eager's, with bias and activation, and contiguous."""
    if not onednn.has_onednn():
        return None
    weight, x, bias = _ramp(4, 3), _ramp(3, 5).t(), _ramp(4)
    made = onednn.packed_linear(x, onednn.pack_linear_weight(weight, None), bias, "gelu")
    expected = _functional.gelu(_functional.linear(x, weight, bias))
    return first_difference(
        ("a difference from eager", _far(made, expected), False),
        ("the strides", made.stride(), (4, 1)),
    )


def check_pack_conv_weight() -> str | None:
    """A packed weight serves inputs of another size than it was packed for, and is a copy."""
    if not onednn.has_onednn():
        return None
    weight, x = _ramp(4, 3, 3, 3), _ramp(2, 3, 7, 7)
    packed = onednn.pack_conv_weight(weight, [1, 1], [1, 1], [1, 1], 1, [1, 3, 5, 5])
    expected = _functional.conv2d(x, weight, padding=1)
    weight.zero_()
    made = onednn.packed_conv(x, packed, None, [1, 1], [1, 1], [1, 1], 1)
    return first_difference(("a difference from eager", _far(made, expected), False))


def check_packed_conv() -> str | None:
    """The result is eager's, with bias, activation or addend, and channels last whatever the input is."""
    if not onednn.has_onednn():
        return None
    weight, x, bias, addend = _ramp(6, 2, 1, 1), _ramp(2, 4, 5, 5), _ramp(6), _ramp(2, 6, 3, 3)
    geometry: tuple[list[int], list[int], list[int], int] = ([0, 0], [2, 2], [1, 1], 2)
    packed = onednn.pack_conv_weight(weight, *geometry, None)
    plain = _functional.conv2d(x, weight, bias, stride=2, groups=2)
    smooth = onednn.packed_conv(x, packed, bias, *geometry, activation="silu")
    added = onednn.packed_conv(x, packed, bias, *geometry, addend=addend)
    return first_difference(
        ("a difference from eager", _far(smooth, _functional.silu(plain)), False),
        ("a difference of sums", _far(added, plain + addend), False),
        ("the strides", (smooth.stride(), added.stride()), ((54, 1, 18, 6), (54, 1, 18, 6))),
    )


CHECKS = (
    check_has_onednn,
    check_is_packed,
    check_fuses,
    check_pack_linear_weight,
    check_packed_linear,
    check_pack_conv_weight,
    check_packed_conv,
)
