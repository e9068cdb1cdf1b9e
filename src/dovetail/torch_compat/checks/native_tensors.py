"""Checks of `torch_compat.native_tensors`."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch

from dovetail.torch_compat import native_tensors
from dovetail.torch_compat.checks.difference import first_difference
from dovetail.torch_compat.native_symbols import library_function


def check_wrapping_function() -> str | None:
    """A tensor of each dtype is what was asked for, on memory of its own, and stays when the handle goes; in inference
    mode it is an inference tensor.
    """
    address = native_tensors.wrapping_function()
    if address is None:
        return None  # nothing is run so
    wrap = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p)(address)
    pairs: list[tuple[str, object, object]] = []
    for dtype, code in native_tensors.CODES.items():
        with torch.inference_mode(dtype is torch.float64):
            handle = _made((2, 3), (1, 2), code)
            made = wrap(handle)
        memory = ctypes.c_void_p()
        _function(native_tensors.DATA)(handle, ctypes.byref(memory))
        _function(native_tensors.DELETE)(handle)
        found = (type(made), made.dtype, tuple(made.shape), made.stride(), made.data_ptr(), made.is_inference())
        expected = (torch.Tensor, dtype, (2, 3), (1, 2), memory.value, dtype is torch.float64)
        pairs.append((f"a tensor of {dtype}", found, expected))
        pairs.append((f"bytes of {dtype}", made.untyped_storage().nbytes(), 6 * dtype.itemsize))
    return first_difference(*pairs)


def _function(name: str) -> Callable[..., int]:
    address = library_function(name)
    assert address is not None
    more = [ctypes.c_void_p] if name == native_tensors.DATA else []
    return ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, *more)(address)


def _made(shape: tuple[int, int], stride: tuple[int, int], code: int) -> ctypes.c_void_p:
    long, kind = ctypes.c_int64, ctypes.c_int32
    address = library_function(native_tensors.MAKE)
    assert address is not None
    made = ctypes.c_void_p()
    kinds = (long, ctypes.c_void_p, ctypes.c_void_p, kind, kind, kind, ctypes.c_void_p)
    make = ctypes.CFUNCTYPE(ctypes.c_int, *kinds)(address)
    assert make(2, (long * 2)(*shape), (long * 2)(*stride), code, 0, 0, ctypes.byref(made)) == 0
    return made


CHECKS = (check_wrapping_function,)
