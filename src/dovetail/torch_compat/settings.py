"""Settings of torch that code may ask for, and the functions that tell them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, ModuleType
from typing import Any

import torch
from torch._tensor_str import PRINT_OPTS
from torch.utils._config_module import ConfigModule

_PREFIXES = ("get_", "is_", "are_")
# What belongs to the call that is recorded, not to the process, and what every guard compares (`ambient_modes`).
_OF_CALLS = """
get_tracing_state get_graph_exec_group get_torch_function_state get_DTensor_sharding_propagator_cache_stats
get_default_device get_default_dtype get_cpp_backtrace get_thread_name get_operator_version_map get_rng_state
get_caught_jit_exception_class_name get_caught_jit_exception_original_msg get_upgraders_entry_map
get_math_sdp_enabled get_mem_efficient_sdp_enabled get_flash_sdp_enabled get_mkldnn_enabled get_cudnn_enabled
get_fastpath_enabled is_tracing is_torch_function_all_disabled is_torch_function_enabled is_exporting
is_torch_function_mode_enabled is_fwd_grad_enabled is_multithreading_enabled is_grad_enabled is_available
is_anomaly_enabled is_anomaly_check_nan_enabled
is_inference_mode_enabled is_any_autocast_enabled is_compiling is_dynamo_compiling is_non_strict_tracing
is_autocast_enabled is_autocast_cpu_enabled is_autocast_xla_enabled is_autocast_ipu_enabled is_built
get_autocast_xla_dtype get_autocast_ipu_dtype get_autocast_cpu_dtype get_autocast_gpu_dtype
are_functorch_transforms_active
"""
_NO_SETTINGS = frozenset(_OF_CALLS.split())
_NUMBER_OF = {  # what functions with arguments may be asked for
    "_get_fp32_precision_getter": (
        *(("generic", "all"), ("cuda", "all"), ("mkldnn", "all")),
        *((kind, of) for kind in ("cuda", "mkldnn") for of in ("matmul", "conv", "rnn")),
    ),
}
_PLAIN = (bool, int, float, str, type(None), torch.dtype, torch.device)
_CONFIG = ConfigModule.__getattr__.__code__
_PRINTING = torch._tensor_str.__file__


@dataclass(frozen=True, slots=True)
class _Answers:
    """Asks a function of C whose answers cannot be compared, or which takes arguments: for all of them."""

    function: Callable[..., Any]

    def __call__(self) -> tuple[Any, ...]:
        asked = _NUMBER_OF.get(self.function.__name__, ((),))
        return tuple([_plain(self.function(*arguments)) for arguments in asked])

    def __repr__(self) -> str:
        return f"torch._C.{self.function.__name__}"


@dataclass(frozen=True, slots=True)
class _Option:
    """Asks for an option in a module of options."""

    module: ModuleType
    name: str

    def __call__(self) -> Any:
        return getattr(self.module, self.name)

    def __repr__(self) -> str:
        return f"{self.module.__name__}.{self.name}"


@cache
def setting_functions() -> frozenset[Any]:
    """The functions of torch's C code that may tell a setting, by their names."""
    every = vars(torch._C).items()
    return frozenset(x for name, x in every if type(x) is BuiltinFunctionType and _may_tell(name))


@lru_cache(256)
def setting_of(function: Any) -> Callable[[], Any] | None:
    """What asks again what a function of `setting_functions` has told; None where it tells none."""
    if function.__name__ in _NUMBER_OF:
        return _Answers(function)
    try:
        answer = function()
    except Exception:  # it takes arguments, or is not for this machine
        return None
    return function if isinstance(answer, (*_PLAIN, tuple)) else _Answers(function)


def print_options() -> tuple[Any, ...]:
    """How tensors are written."""
    return tuple(sorted(vars(PRINT_OPTS).items()))


def tells_setting(code: CodeType) -> bool:
    """Whether code of torch's, in Python, tells a setting or goes by one: see `told_by`."""
    if code is _CONFIG or (code.co_filename == _PRINTING and "PRINT_OPTS" in code.co_names):
        return True
    takes = code.co_argcount + code.co_kwonlyargcount
    return not takes and not code.co_flags & 12 and _may_tell(code.co_name)


def told_by(frame: FrameType) -> Callable[[], Any] | None:
    """What asks again what a frame of such code has told."""
    code = frame.f_code
    if code is _CONFIG:
        return _Option(frame.f_locals["self"], frame.f_locals["name"])
    if code.co_filename == _PRINTING:
        return print_options
    found = frame.f_globals.get(code.co_name)
    return found if isinstance(found, FunctionType) and found.__code__ is code else None


def tells_nothing(asked: Callable[[], Any]) -> bool:
    """Whether a function of those that `told_by` gives answers None, and does not raise."""
    try:
        return asked() is None
    except Exception:  # it is not for this machine
        return False


def _may_tell(name: str) -> bool:
    name = name.lstrip("_")
    return name.startswith(_PREFIXES) and name not in _NO_SETTINGS


def _plain(value: Any) -> Any:
    """A value that can be compared: members of enumerations of C are other objects in each answer."""
    if isinstance(value, _PLAIN):
        return value
    return tuple(map(_plain, value)) if isinstance(value, list | tuple) else str(value)
