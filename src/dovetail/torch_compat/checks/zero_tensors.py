"""Checks of `torch_compat.zero_tensors`."""

from __future__ import annotations

import torch

from dovetail.torch_compat import fakes, zero_tensors
from dovetail.torch_compat.checks.difference import first_difference

aten = torch.ops.aten


def check_views_of_zero_fakes() -> str | None:
    """Views of fakes are fakes, views of others zeros without memory; afterwards torch's kernels are back."""
    real = torch._efficientzerotensor((4, 3), device="cpu")
    mode = fakes.new_fake_mode()
    mode.cache_enabled = False  # whose answers do not tell zeros from others, see below
    with zero_tensors.views_of_zero_fakes():
        outside = real.view(12)
        with mode:
            zeros = torch._efficientzerotensor((4, 3), device="cpu")
            found = [zeros.view(12), zeros.reshape(3, 4), zeros.as_strided((2, 3), (3, 1))]
            product = zeros.view(12) * torch.ones(12, device="cpu")
    again = real.view(2, 6)
    return first_difference(
        ("the claim that views are fakes", [fakes.is_fake(x) for x in found], [True] * 3),
        ("their devices", {x.device.type for x in found}, {"cpu"}),
        ("their shapes", [tuple(x.shape) for x in found], [(12,), (3, 4), (2, 3)]),
        ("the claim that they are zeros", [x._is_zerotensor() for x in (*found, product, outside)], [True] * 5),
        ("numbers of another view", outside.clone().tolist(), [0.0] * 12),
        ("a view afterwards", (tuple(again.shape), again._is_zerotensor()), ((2, 6), True)),
    )


def check_answered_anew() -> str | None:
    """A view of a zero is one although that of another tensor was remembered; tangents have the memory of what they are
    for. What is remembered comes back.
    """
    mode, select, tangent = fakes.new_fake_mode(), aten.select.int, aten._new_zeros_with_same_feature_meta.default
    with mode:
        plain, tall = torch.empty(4, 3, device="cpu"), torch.empty(8, 3, device="cpu")
        plain.select(0, 0)
        tangent(plain[0], plain[0])
        zeros = torch._efficientzerotensor((4, 3), device="cpu")
        with zero_tensors.answered_anew(select, [zeros, 0, 0]):
            enabled = [mode.cache_enabled]
            found = zeros.select(0, 0)
        with zero_tensors.answered_anew(tangent, [plain[0], tall[0]]):
            enabled.append(mode.cache_enabled)
            larger = tangent(plain[0], tall[0])
        with zero_tensors.answered_anew(select, [plain, [plain]]):
            enabled.append(mode.cache_enabled)
    return first_difference(
        ("the claim that it is a zero", found._is_zerotensor(), True),
        ("the bytes of the memory of a tangent", larger.untyped_storage().nbytes(), 96),
        ("whether answers are remembered", (*enabled, mode.cache_enabled), (False, False, True, True)),
    )


CHECKS = (check_views_of_zero_fakes, check_answered_anew)
