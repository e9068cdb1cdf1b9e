"""Tensors that machine code makes: functions of C that make one and let it go, and what gives it to Python.

A tensor is passed as a handle: the address of an `at::Tensor`.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from pathlib import Path

import torch

MAKE, LET_GO, MEMORY = (f"aoti_torch_{name}" for name in ("empty_strided", "delete_tensor_object", "get_data_ptr"))
"""C functions for handles: a new one with memory of its own, its end, and where its memory is."""

CODES = {
    torch.uint8: 0,
    torch.int8: 1,
    torch.int16: 2,
    torch.int32: 3,
    torch.int64: 4,
    torch.float16: 5,
    torch.float32: 6,
    torch.float64: 7,
    torch.bool: 11,
    torch.bfloat16: 15,
}
"""The numbers of `c10::ScalarType`."""

_NAMES = {"linux": "libtorch_python.so", "darwin": "libtorch_python.dylib", "win32": "torch_python.dll"}
_WRAPPING = ("RKN2at10TensorBaseE", "N2at10TensorBaseE", "N2at6TensorE")


@cache
def wrapping_function() -> int | None:
    """The address of the function that makes Python's tensor of a handle, which it leaves; None where it is not found.
    The GIL must be held.
    """
    path = Path(torch.__file__).parent / "lib" / _NAMES.get(sys.platform, "libtorch_python.so")
    for arguments in _WRAPPING:
        try:
            function = getattr(ctypes.CDLL(str(path)), f"_Z16THPVariable_Wrap{arguments}")
        except (OSError, AttributeError):
            continue
        return ctypes.cast(function, ctypes.c_void_p).value
    return None
