"""Checks of `torch_compat.native_symbols`."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from dovetail.torch_compat import native_symbols
from dovetail.torch_compat.checks.difference import first_difference

_ACCURATE = 0x140102


class _Seen(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class _Through(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def check_library_function() -> str | None:
    """A function of MKL's takes a count, two addresses and a mode; a symbol that does not exist is not found."""
    missing = native_symbols.library_function("no_such_symbol_at_all")
    address = native_symbols.library_function("vmdSqrt")
    if address is None:  # a torch without MKL
        return first_difference(("a symbol that does not exist", missing, None))
    root = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_longlong)(address)
    given, made = (ctypes.c_double * 2)(4.0, 9.0), (ctypes.c_double * 3)(0.0, 0.0, 7.0)
    root(2, given, made, _ACCURATE)
    return first_difference(
        ("a symbol that does not exist", missing, None), ("square roots", list(made), [2.0, 3.0, 7.0])
    )


def check_no_mode_watches() -> str | None:
    """Modes of either kind watch; a default device does not."""
    found = [native_symbols.no_mode_watches()]
    with torch.device("cpu"):
        found.append(native_symbols.no_mode_watches())
    with _Seen():
        found.append(native_symbols.no_mode_watches())
    with _Through():
        found.append(native_symbols.no_mode_watches())
    return first_difference(("nothing, a device, modes", found, [True, True, False, False]))


def check_products_are_exact() -> str | None:
    """Products of float32 in less precision, which a public setting allows, are told apart."""
    matmul: Any = torch.backends.mkldnn.matmul
    former, found = matmul.fp32_precision, []
    try:
        for precision in ("ieee", "bf16", "tf32"):
            matmul.fp32_precision = precision
            found.append(native_symbols.products_are_exact())
    finally:
        matmul.fp32_precision = former
    return first_difference(("exact", found, [True, False, False]))


CHECKS = (check_library_function, check_no_mode_watches, check_products_are_exact)
