"""Tensors that machine code makes: functions of C that make one and let it go, and what gives it to Python.

A tensor is passed as a handle: the address of an `at::Tensor`.
"""

from __future__ import annotations

from functools import cache

import torch

from dovetail.torch_compat.native_symbols import library_function

MAKE, DELETE, DATA = (f"aoti_torch_{name}" for name in ("empty_strided", "delete_tensor_object", "get_data_ptr"))
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

_WRAPPING = ("RKN2at10TensorBaseE", "N2at10TensorBaseE", "N2at6TensorE")


@cache
def wrapping_function() -> int | None:
    """The address of the function that makes Python's tensor of a handle, which it leaves; None where it is not found.
    The GIL must be held.
    """
    names = (f"_Z16THPVariable_Wrap{arguments}" for arguments in _WRAPPING)
    return next((found for name in names if (found := library_function(name, "torch_python"))), None)
