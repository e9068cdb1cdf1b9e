"""Torch's modes that decide what operators a program runs."""

from __future__ import annotations

import torch

from dovetail.torch_compat.modes import casts_in_force, matmul_precision, surroundings


def ambient_modes() -> tuple[object, ...]:
    """Torch's modes that decide what operators a program runs."""
    autocast = casts_in_force()
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        (autocast, torch.is_autocast_cache_enabled()) if autocast else (),
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        matmul_precision(),
        *surroundings(),
    )
