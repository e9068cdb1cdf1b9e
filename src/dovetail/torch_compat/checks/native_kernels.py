"""Checks of `torch_compat.native_kernels`."""

from __future__ import annotations

import ctypes

import torch

from dovetail.torch_compat import native_kernels, native_tensors
from dovetail.torch_compat.checks.difference import first_difference
from dovetail.torch_compat.native_symbols import library_function

_POINTER, _WHOLE = ctypes.c_void_p, ctypes.c_int64


def check_kernel_address() -> str | None:
    """A function of `at::cpu`, and a kernel behind a stub, write what the operators give into given memory."""
    create, delete, softmax, norm = (
        library_function(native_kernels.CREATE),
        library_function(native_tensors.DELETE),
        native_kernels.kernel_address("softmax"),
        native_kernels.kernel_address("layer_norm"),
    )
    if create is None or delete is None or softmax is None or norm is None:  # torch was built in another way
        return None
    x, made, row = (torch.linspace(-1, 2, 12).view(3, 4) for _ in range(3))
    weight, bias, mean, scale = torch.tensor([1.0, 2, 3, 4]), torch.ones(4), torch.zeros(3), torch.zeros(3)
    tensors = (x, made, row, weight, bias, mean, scale)
    handles = [_POINTER() for _ in tensors]
    numbers = [_WHOLE, _POINTER, _POINTER, _WHOLE, *[ctypes.c_int32] * 3]
    new = ctypes.CFUNCTYPE(ctypes.c_int32, _POINTER, *numbers, _POINTER)(create)
    for tensor, handle in zip(tensors, handles, strict=True):
        dims, code = tensor.dim(), native_kernels.DTYPE_CODES[tensor.dtype]
        shape, stride = (_WHOLE * dims)(*tensor.shape), (_WHOLE * dims)(*tensor.stride())
        new(tensor.data_ptr(), dims, shape, stride, 0, code, 0, 0, ctypes.byref(handle))
    a, b, c, d, e, f, g = handles
    ctypes.CFUNCTYPE(_POINTER, _POINTER, _POINTER, _WHOLE, ctypes.c_bool)(softmax)(b, a, 1, False)
    form = (*[_POINTER] * 3, _WHOLE, _WHOLE, ctypes.c_double, *[_POINTER] * 3)
    ctypes.CFUNCTYPE(None, *form)(norm)(a, d, e, 3, 4, 1e-5, c, f, g)
    for handle in handles:
        ctypes.CFUNCTYPE(ctypes.c_int32, _POINTER)(delete)(handle)
    wanted = torch.native_layer_norm(x, [4], weight, bias, 1e-5)
    return first_difference(
        ("softmax", made.tolist(), torch.softmax(x, 1).tolist()),
        ("a normalized row", row.tolist(), wanted[0].tolist()),
        ("means", mean.tolist(), wanted[1].flatten().tolist()),
    )


CHECKS = (check_kernel_address,)
