"""Tensors that machine code makes: functions of C that make one and let it go, and what gives it to Python.

A tensor is passed as a handle: the address of an `at::Tensor`.
"""

from __future__ import annotations

import ctypes
from functools import cache

import torch

from dovetail.torch_compat.native_symbols import library_function

MAKE, DELETE, DATA = (f"aoti_torch_{name}" for name in ("empty_strided", "delete_tensor_object", "get_data_ptr"))
"""C functions for handles: a new one with memory of its own, its end, and where its memory is."""

DIMS, SIZES, STRIDES = (f"aoti_torch_get_{name}" for name in ("dim", "sizes", "strides"))
"""C functions for handles: how many dimensions there are, and where sizes and strides are."""

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

IS_NEGATIVE, IS_INFERENCE = (f"_ZN2at6native{name}ERKNS_6TensorE" for name in ("6is_neg", "12is_inference"))
"""Functions of C++ that are asked about a handle: whether it has the negative bit; whether it is of inference mode."""

VERSION = "_ZNK2at10TensorBase8_versionEv"
"""The function of C++ that gives a handle's version; not to be called for tensors that have no counter."""

_WRAPPING = ("RKN2at10TensorBaseE", "N2at10TensorBaseE", "N2at6TensorE")


@cache
def wrapping_function() -> int | None:
    """The address of the function that makes Python's tensor of a handle, which it leaves; None where it is not found.
    The GIL must be held.
    """
    names = (f"_Z16THPVariable_Wrap{arguments}" for arguments in _WRAPPING)
    return next((found for name in names if (found := library_function(name, "torch_python"))), None)


@cache
def counting_function() -> int | None:
    """The address of the function that moves a handle's version counter; None where it is not found."""
    names = (f"_ZN5torch8autograd4impl12bump_versionERKN2at{kind}E" for kind in ("6Tensor", "10TensorBase"))
    return next((found for name in names if (found := library_function(name)) is not None), None)


@cache
def handle_offset() -> int | None:
    """By how many bytes a handle lies behind the beginning of Python's tensor or parameter; None where none is found.

    The class of the object is eight bytes behind its beginning then.
    """
    made: list[torch.Tensor] = [torch.empty(2), torch.nn.Parameter(torch.empty(3))]
    words = [(ctypes.c_size_t * 5).from_address(id(tensor)) for tensor in made]
    if any(held[1] != id(type(tensor)) for held, tensor in zip(words, made, strict=True)):
        return None
    implementations: list[int] = [tensor._cdata for tensor in made]
    places = (at for at in range(2, 5) if [held[at] for held in words] == implementations)
    found = next(places, None)
    return None if found is None else 8 * found
