"""Torch's modes that decide what operators a program runs."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import torch

from dovetail.torch_compat.modes import casts_in_force, matmul_precision, plain_modes, same_plain_modes, surroundings


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


class SameModes:
    """Asks whether torch's modes are as they were. Cost: 0.8 us.

    surely_are: a part of that, which may say no although they are.
    """

    __qualname__ = "the modes of torch"

    def __init__(self, modes: Hashable) -> None:
        """modes: what `ambient_modes` told."""
        self._modes = modes
        self.surely_are: Callable[[], bool] = _cannot_tell

    def __call__(self) -> bool:
        """Whether they are."""
        if self.surely_are():
            return True
        plain = plain_modes()
        if ambient_modes() != self._modes:
            return False
        if plain is not None and plain == plain_modes():  # another thread may have changed one meanwhile
            self.surely_are = same_plain_modes(plain)
        return True

    def __repr__(self) -> str:
        return "the modes of torch"


def _cannot_tell() -> bool:
    return False
