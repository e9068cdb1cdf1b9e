"""What around a call decides which operators torch's own code runs, besides autograd and autocast."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.modules import module
from torch.overrides import _get_current_function_mode_stack, _pop_mode_temporarily
from torch.utils._device import DeviceContext

_HOOKS = tuple(
    getattr(module, f"_global_{name}_hooks") for name in ("forward_pre", "forward", "backward_pre", "backward")
)

_KINDS = ("cpu", "cuda")
_LIBRARIES = (
    torch._C._get_flash_sdp_enabled,
    torch._C._get_math_sdp_enabled,
    torch._C._get_mem_efficient_sdp_enabled,
    torch._C._get_mkldnn_enabled,
    torch._C._get_cudnn_enabled,
    torch.backends.mha.get_fastpath_enabled,
)
DEFAULT_DTYPE = "torch.set_default_dtype"
PRECISION = "torch.set_float32_matmul_precision"
_PRECISIONS = (("generic", "all"), ("cuda", "matmul"), ("mkldnn", "matmul"))  # of a backend's operators
_function_modes = torch._C._len_torch_function_stack


def function_mode_is_active() -> bool:
    """Whether a `TorchFunctionMode` of the user's is active; the default device is none."""
    if not _function_modes():
        return False
    return any(not isinstance(mode, DeviceContext) for mode in _get_current_function_mode_stack())


def autocast_is_active() -> bool:
    """Whether autocast is on for any kind of device."""
    return torch._C._is_any_autocast_enabled()


def autocast_is_active_above() -> bool:
    """Whether autocast is on for the code that called the operator which a dispatch mode is told of."""
    with torch._C._RestorePythonTLSSnapshot():
        return torch._C._is_any_autocast_enabled()


def casts_in_force() -> tuple[tuple[str, torch.dtype], ...]:
    """The kinds of devices for which autocast is on, each with what it casts to."""
    if not autocast_is_active():
        return ()
    return tuple([(kind, torch.get_autocast_dtype(kind)) for kind in _KINDS if torch.is_autocast_enabled(kind)])


set_gradients: Callable[[bool], None] = torch._C._set_grad_enabled
"""Whether autograd records from now on: `torch.set_grad_enabled` without a context, which costs more than a call."""


@contextmanager
def autocast_off() -> Iterator[None]:
    """While active, nothing is cast: for operators that were recorded with their casts."""
    active = [kind for kind in _KINDS if torch.is_autocast_enabled(kind)]
    for kind in active:
        torch.set_autocast_enabled(kind, False)
    try:
        yield
    finally:
        for kind in active:
            torch.set_autocast_enabled(kind, True)


functions_unnoticed: Any = torch._C.DisableTorchFunction  # a context: function modes get no calls meanwhile


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
    """The default device, what libraries and kernels may be used, and hooks on all modules; it can be hashed."""
    device = default_device()
    return (
        None if device is None else str(device),
        *libraries_in_use(),
        tuple([tuple(hooks.values()) for hooks in _HOOKS if hooks]) if any(_HOOKS) else (),
    )


_autocast = torch._C._is_any_autocast_enabled
_gradients, _inference, _dtype = torch.is_grad_enabled, torch.is_inference_mode_enabled, torch.get_default_dtype
_is_deterministic, _precision = torch._C._get_deterministic_algorithms, torch._C._get_float32_matmul_precision
_flash, _plain, _efficient, _onednn, _cudnn, _encoders = _LIBRARIES

_ANSWERS: tuple[Callable[[], Any], ...] = (
    _autocast,
    _function_modes,
    _gradients,
    _inference,
    _dtype,
    _is_deterministic,
    _precision,
    *_LIBRARIES,
)


def plain_modes() -> list[Any] | None:
    """What `ambient_modes` tells, in fewer calls; None where autocast, a mode or hooks of all modules say more.

    Equal lists mean equal ambient modes.
    """
    try:
        answers = list(map(operator.call, _ANSWERS))
    except RuntimeError:  # precisions that have no name
        return None
    return None if answers[0] or answers[1] or any(_HOOKS) else answers


def same_plain_modes(answers: Sequence[Any]) -> Callable[[], bool]:
    """What tells whether `plain_modes` would give these answers again, asked one by one. Cost: 0.6 us."""
    _, _, gradients, inference, dtype, is_deterministic, precision, *libraries = answers
    flash, plain, efficient, onednn, cudnn, encoders = libraries
    forward_pre, forward, backward_pre, backward = _HOOKS

    def are() -> bool:
        return (
            _gradients() is gradients
            and _inference() is inference
            and not _function_modes()
            and not _autocast()
            and _dtype() is dtype
            and _is_deterministic() is is_deterministic
            and _flash() is flash
            and _plain() is plain
            and _efficient() is efficient
            and _onednn() is onednn
            and _cudnn() is cudnn
            and _encoders() is encoders
            and not (forward_pre or forward or backward_pre or backward)
            and _is_precision(precision)
        )

    return are


def _is_precision(name: str) -> bool:
    try:
        return _precision() == name
    except RuntimeError:  # they have no name
        return False


def libraries_in_use() -> tuple[bool, ...]:
    """What libraries and kernels operators may be made of: of attention, recurrent layers, and encoders."""
    return tuple([is_enabled() for is_enabled in _LIBRARIES])


def matmul_precision() -> str | tuple[str, ...]:
    """How precise products of float32 are to be.

    A name, unless the settings of backends (`torch.backends.mkldnn.matmul.fp32_precision`) say more than a name can:
    then torch's own function raises, and these are what they say.
    """
    try:
        return torch._C._get_float32_matmul_precision()
    except RuntimeError:
        return tuple([torch._C._get_fp32_precision_getter(*of) for of in _PRECISIONS])


def _set_matmul_precision(value: str | tuple[str, ...]) -> None:
    if isinstance(value, str):
        torch.set_float32_matmul_precision(value)
    else:
        for of, precision in zip(_PRECISIONS, value, strict=True):
            torch._C._set_fp32_precision_setter(*of, precision)


def default_device() -> torch.device | None:
    """The default device that is set, as it was set; None where none is. No tensor is made, as torch's own does."""
    if not _function_modes():
        return None
    modes = reversed(_get_current_function_mode_stack())
    return next((mode.device for mode in modes if isinstance(mode, DeviceContext)), None)


def switches() -> dict[str, Any]:
    """What code can switch for whoever calls it, by the name of what switches it."""
    found: dict[str, Any] = {
        "torch.set_grad_enabled": torch.is_grad_enabled(),
        "torch.set_default_dtype": torch.get_default_dtype(),
        "torch.use_deterministic_algorithms": (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
        "torch.set_num_threads": torch.get_num_threads(),
        PRECISION: matmul_precision(),
        "torch.set_default_device": default_device(),
        "torch.set_anomaly_enabled": (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        "torch.set_autocast_cache_enabled": torch.is_autocast_cache_enabled(),
        "torch.backends.cuda.enable_flash_sdp": torch.backends.cuda.flash_sdp_enabled(),
        "torch.backends.cuda.enable_math_sdp": torch.backends.cuda.math_sdp_enabled(),
        "torch.backends.cuda.enable_mem_efficient_sdp": torch.backends.cuda.mem_efficient_sdp_enabled(),
    }
    for kind in _KINDS:
        found[f"torch.set_autocast_enabled({kind!r})"] = torch.is_autocast_enabled(kind)
        found[f"torch.set_autocast_dtype({kind!r})"] = torch.get_autocast_dtype(kind)
    return found


def kernel_switches() -> dict[str, Any]:
    """What code can switch that operators look at when they run: the kernel, or the dtype of what they make."""
    found: dict[str, Any] = {
        DEFAULT_DTYPE: torch.get_default_dtype(),
        "torch.set_num_threads": torch.get_num_threads(),
        "torch.use_deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "torch.backends.mkldnn.enabled": torch._C._get_mkldnn_enabled(),
        PRECISION: matmul_precision(),
    }
    if torch._C._has_cuda:
        found["torch.backends.cudnn.enabled"] = torch._C._get_cudnn_enabled()
        found["torch.backends.cudnn.benchmark"] = torch._C._get_cudnn_benchmark()
        found["torch.backends.cudnn.deterministic"] = torch._C._get_cudnn_deterministic()
    return found


def set_switches(wanted: Mapping[str, Any]) -> None:
    """Set what `switches` gives, by its names."""
    for name, value in wanted.items():
        if name.startswith("torch.set_autocast_enabled"):
            torch.set_autocast_enabled(name.split("'")[1], value)
        elif name.startswith("torch.set_autocast_dtype"):
            torch.set_autocast_dtype(name.split("'")[1], value)
        elif name == "torch.use_deterministic_algorithms":
            torch.use_deterministic_algorithms(value[0], warn_only=value[1])
        elif name == "torch.set_grad_enabled":
            set_gradients(value)
        elif name == "torch.set_default_device":
            torch.set_default_device(None)  # what was set last; what is around it holds again
            if default_device() != value:
                torch.set_default_device(value)
        elif name == PRECISION:
            _set_matmul_precision(value)
        elif name == "torch.set_anomaly_enabled":
            torch.autograd.set_detect_anomaly(*value)
        else:
            owner: Any = torch.backends.cuda if name.startswith("torch.backends.cuda") else torch
            getattr(owner, name.rpartition(".")[2])(value)
