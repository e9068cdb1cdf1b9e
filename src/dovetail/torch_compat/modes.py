"""What around a call decides which operators torch's own code runs, besides autograd and autocast."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.modules import module
from torch.overrides import _get_current_function_mode_stack, _pop_mode_temporarily
from torch.utils._device import DeviceContext

_HOOKS = tuple(
    getattr(module, f"_global_{name}_hooks") for name in ("forward_pre", "forward", "backward_pre", "backward")
)

_function_modes = torch._C._len_torch_function_stack


def function_mode_is_active() -> bool:
    """Whether a `TorchFunctionMode` of the user's is active; the default device is none."""
    if not _function_modes():
        return False
    return any(not isinstance(mode, DeviceContext) for mode in _get_current_function_mode_stack())


def autocast_is_active() -> bool:
    """Whether autocast is on for any kind of device."""
    return torch._C._is_any_autocast_enabled()


def has_function_mode(mode: object) -> bool:
    """Whether this function mode is active."""
    return any(active is mode for active in _get_current_function_mode_stack())


@contextmanager
def unnoticed_mode() -> Iterator[None]:
    """While active, modules that ask whether anything overrides torch's functions are not told of the innermost mode.

    `nn.MultiheadAttention` and `nn.TransformerEncoderLayer` take another way when something does.
    """
    asked = torch.overrides.has_torch_function

    def has_torch_function(relevant_args: Iterable[Any]) -> bool:
        if not _function_modes():
            return bool(asked(relevant_args))
        with _pop_mode_temporarily():
            return bool(asked(relevant_args))

    overrides: Any = torch.overrides
    overrides.has_torch_function = has_torch_function
    try:
        yield
    finally:
        overrides.has_torch_function = asked


def surroundings() -> tuple[object, ...]:
    """The default device, the kernels of attention that are allowed, and hooks on all modules; it can be hashed."""
    modes = _get_current_function_mode_stack() if torch._C._len_torch_function_stack() else ()
    return (
        tuple([str(mode.device) for mode in modes if isinstance(mode, DeviceContext)]),
        torch._C._get_flash_sdp_enabled(),
        torch._C._get_math_sdp_enabled(),
        torch._C._get_mem_efficient_sdp_enabled(),
        tuple([tuple(hooks.values()) for hooks in _HOOKS if hooks]),
    )
