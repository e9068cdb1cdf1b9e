"""Checks of `torch_compat.modes`."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.module import register_module_forward_hook
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from dovetail.torch_compat import modes
from dovetail.torch_compat.checks.difference import first_difference


class _Through(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def check_function_mode_is_active() -> str | None:
    """A mode is seen while it is active; a default device is not taken for one."""
    found = [modes.function_mode_is_active()]
    with torch.device("cpu"):
        found.append(modes.function_mode_is_active())
        with _Through():
            found.append(modes.function_mode_is_active())
    return first_difference(("nothing, a device, a mode", found, [False, False, True]))


def check_functions_unnoticed() -> str | None:
    """A mode gets no call inside, and the calls after it."""
    calls = list[Any]()

    class Counting(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            calls.append(func)
            return func(*args, **(kwargs or {}))

    with Counting():
        with modes.functions_unnoticed():
            inside = torch.ones(2).neg().shape
        before, _ = len(calls), torch.ones(2)
    return first_difference(("calls", (before, len(calls) > 0, tuple(inside)), (0, True, (2,))))


def check_surroundings() -> str | None:
    """Another default device, attention with one kernel, fewer libraries, and a hook on all modules are differences."""
    before = modes.surroundings()
    with torch.device("meta"):
        found = [modes.surroundings()]
    with sdpa_kernel(SDPBackend.MATH):
        found.append(modes.surroundings())
    torch._C._set_mkldnn_enabled(not modes.libraries_in_use()[3])
    found.append(modes.surroundings())
    torch._C._set_mkldnn_enabled(not modes.libraries_in_use()[3])
    handle = register_module_forward_hook(lambda *_: None)
    found.append(modes.surroundings())
    handle.remove()
    differ = [now != before for now in found]
    return first_difference(("what differs", differ, [True] * 4), ("afterwards", modes.surroundings(), before))


def check_plain_modes() -> str | None:
    """Settings make other answers, and there are none where a mode or a hook on all modules says more."""
    before = modes.plain_modes()
    with torch.no_grad():
        found = [modes.plain_modes()]
    with torch.inference_mode():
        found.append(modes.plain_modes())
    torch._C._set_mkldnn_enabled(not modes.libraries_in_use()[3])
    found.append(modes.plain_modes())
    torch._C._set_mkldnn_enabled(not modes.libraries_in_use()[3])
    differ = [now is not None and now != before for now in found]
    with _Through():
        none = [modes.plain_modes()]
    with torch.autocast("cpu"):
        none.append(modes.plain_modes())
    handle = register_module_forward_hook(lambda *_: None)
    none.append(modes.plain_modes())
    handle.remove()
    expected = [before is not None] * 3  # within a mode there are none
    return first_difference(
        ("what differs", differ, expected), ("none", none, [None] * 3), ("afterwards", modes.plain_modes(), before)
    )


def check_same_plain_modes() -> str | None:
    """Answers are the same again until a setting makes another one, or a mode or a hook says more."""
    before = modes.plain_modes()
    if before is None:
        return "a mode is active"
    are = modes.same_plain_modes(before)
    found = [are()]
    with torch.no_grad():
        found.append(are())
    with torch.inference_mode():
        found.append(are())
    torch._C._set_mkldnn_enabled(not modes.libraries_in_use()[3])
    found.append(are())
    torch._C._set_mkldnn_enabled(not modes.libraries_in_use()[3])
    with _Through():
        found.append(are())
    with torch.autocast("cpu"):
        found.append(are())
    handle = register_module_forward_hook(lambda *_: None)
    found.append(are())
    handle.remove()
    found.append(are())
    return first_difference(("the same", found, [True, *[False] * 6, True]))


def check_libraries_in_use() -> str | None:
    """Each library, and each kernel of attention, that is switched off makes a difference."""
    before = modes.libraries_in_use()
    fast = torch.backends.mha.get_fastpath_enabled()
    with sdpa_kernel(SDPBackend.MATH):
        found = [modes.libraries_in_use()]
    torch._C._set_mkldnn_enabled(not before[3])
    found.append(modes.libraries_in_use())
    torch._C._set_mkldnn_enabled(before[3])
    torch.backends.mha.set_fastpath_enabled(not fast)
    found.append(modes.libraries_in_use())
    torch.backends.mha.set_fastpath_enabled(fast)
    differ = [now != before for now in found]
    return first_difference(("what differs", differ, [True] * 3), ("afterwards", modes.libraries_in_use(), before))


def check_autocast_off() -> str | None:
    """Nothing is cast inside, and everything as before after it."""
    x = torch.ones(2, 2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with modes.autocast_off():
            inside = (modes.autocast_is_active(), (x @ x).dtype)
        after = (modes.autocast_is_active(), (x @ x).dtype)
    return first_difference(
        ("inside", inside, (False, torch.float32)),
        ("after it", after, (True, torch.bfloat16)),
    )


def check_autocast_is_active_above() -> str | None:
    """A dispatch mode, for which autocast seems to be off, hears whether it is on above."""
    seen: list[bool] = []

    class Look(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(modes.autocast_is_active_above())
            return func(*args, **(kwargs or {}))

    x = torch.ones(2)
    with Look():
        x.sin()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            x.sin()
    return first_difference(("off, on", seen, [False, True]))


def check_casts_in_force() -> str | None:
    """Autocast for the CPU is seen with its dtype."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = modes.casts_in_force()
    return first_difference(
        ("outside and inside", (modes.casts_in_force(), inside), ((), (("cpu", torch.bfloat16),))),
    )


def check_has_function_mode() -> str | None:
    """A mode that was entered is known from one that was not."""
    mode, other = torch.overrides.BaseTorchFunctionMode(), torch.overrides.BaseTorchFunctionMode()
    before = modes.has_function_mode(mode)
    with mode:
        during = modes.has_function_mode(mode), modes.has_function_mode(other)
    return first_difference(("answers", (before, *during), (False, True, False)))


def check_autocast_is_active() -> str | None:
    """Autocast of any kind of device is seen while it is on."""
    found = [modes.autocast_is_active()]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found.append(modes.autocast_is_active())
        with torch.autocast("cpu", enabled=False):
            found.append(modes.autocast_is_active())
    return first_difference(("off, on, off", found, [False, True, False]))


def check_unnoticed_mode() -> str | None:
    """The question whether something overrides torch's functions has eager's answer under the innermost mode."""
    tensors = (torch.ones(1),)
    with _Through():
        found = [torch.overrides.has_torch_function(tensors)]
        with modes.unnoticed_mode():
            found.append(torch.overrides.has_torch_function(tensors))
            with _Through():
                found.append(torch.overrides.has_torch_function(tensors))
        found.append(torch.overrides.has_torch_function(tensors))
    return first_difference(("answers", found, [True, False, True, True]))


def check_default_device() -> str | None:
    """Each way to set a default device is seen, and nothing is made in order to see it."""
    made = list[Any]()

    class Look(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            made.append(func)
            return func(*args, **(kwargs or {}))

    with Look():
        found = [modes.default_device()]
        with torch.device("meta"), _Through():
            found.append(modes.default_device())
            torch.set_default_device("cpu")
            try:
                found.append(modes.default_device())
            finally:
                torch.set_default_device(None)
            found.append(modes.default_device())
        found.append(modes.default_device())
    devices = [None if device is None else str(device) for device in found]
    return first_difference(("devices", devices, [None, "meta", "cpu", "meta", None]), ("made", made, []))


def check_switches() -> str | None:
    """Each switch that is set is seen."""
    before = modes.switches()
    other = {"torch.set_grad_enabled": not before["torch.set_grad_enabled"], "torch.set_default_dtype": torch.float64}
    other["torch.set_autocast_dtype('cpu')"] = torch.float16
    try:
        modes.set_switches(other)
        after = modes.switches()
    finally:
        modes.set_switches({name: before[name] for name in other})
    return first_difference(
        ("what was set", {name: after[name] for name in other}, other),
        ("what was not", {n: v for n, v in after.items() if n not in other}, _without(before, other)),
        ("what it is after that", modes.switches(), before),
    )


def check_kernel_switches() -> str | None:
    """What operators look at is noticed when it changes, and what it was is found again."""
    before = modes.kernel_switches()
    dtype = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)
        during = modes.kernel_switches()
    finally:
        torch.set_default_dtype(dtype)
    changed = [name for name in before if before[name] != during[name]]
    return first_difference(
        ("what changed", changed, [modes.DEFAULT_DTYPE]), ("what it is afterwards", modes.kernel_switches(), before)
    )


def check_matmul_precision() -> str | None:
    """Every way to set it is seen, and can be set back, where torch's own function says that it cannot tell."""
    before, products = modes.matmul_precision(), torch.backends.mkldnn.matmul
    was = products.fp32_precision
    products.fp32_precision = "bf16"
    during = modes.matmul_precision()
    modes.set_switches({modes.PRECISION: before})
    products.fp32_precision = was
    return first_difference(("a difference", before != during, True), ("afterwards", modes.matmul_precision(), before))


def check_set_switches() -> str | None:
    """Every switch can be set to what it is."""
    before = modes.switches()
    modes.set_switches(before)
    with torch.device("meta"):
        modes.set_switches(before)
    return first_difference(("the switches", modes.switches(), before))


def _without(found: dict[str, object], names: Collection[str]) -> dict[str, object]:
    return {name: value for name, value in found.items() if name not in names}


CHECKS = (
    check_kernel_switches,
    check_autocast_is_active,
    check_autocast_is_active_above,
    check_autocast_off,
    check_casts_in_force,
    check_default_device,
    check_has_function_mode,
    check_function_mode_is_active,
    check_set_switches,
    check_matmul_precision,
    check_surroundings,
    check_plain_modes,
    check_same_plain_modes,
    check_libraries_in_use,
    check_switches,
    check_unnoticed_mode,
)
