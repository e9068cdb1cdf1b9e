"""Functions of C in torch's library, by symbol; and whether a program's operators would be seen by somebody."""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from pathlib import Path

import torch

from dovetail.torch_compat.modes import function_mode_is_active

_dispatch_modes = torch._C._len_torch_dispatch_stack
_precision = getattr(torch._C, "_get_fp32_precision_getter", None)
_EXACT = ("none", "ieee")
_FILES = {"linux": "lib{}.so", "darwin": "lib{}.dylib", "win32": "{}.dll"}


@cache
def library_function(symbol: str, library: str = "torch_cpu") -> int | None:
    """The address of a function in a library of torch's or in those that it needs, MKL's or OpenMP's say; None where it
    is in none of them.
    """
    path = Path(torch.__file__).parent / "lib" / _FILES.get(sys.platform, "lib{}.so").format(library)
    try:
        function = getattr(ctypes.CDLL(str(path)), symbol)
    except (OSError, AttributeError):
        return None
    return ctypes.cast(function, ctypes.c_void_p).value


def products_are_exact() -> bool:
    """Whether torch multiplies matrices of float32 in float32, as it does unless it is told otherwise."""
    return _precision is not None and _precision("mkldnn", "matmul") in _EXACT


def no_mode_watches() -> bool:
    """Whether no mode is active that sees the operators that run: a dispatch mode, or a function mode."""
    return not (_dispatch_modes() or function_mode_is_active())
