"""Functions of C++ in torch's library that are operators themselves, without dispatch; and handles of tensors for them.

`at::cpu` has the operators of the CPU as plain functions; the kernels of others are found through their dispatch stubs,
which hold one address for each capability of the processor. A symbol says which arguments a function takes, so one that
is there takes what is expected. A tensor is passed as a handle: the address of an `at::Tensor`.

Where a symbol is missing, the operator is not called so.
"""

from __future__ import annotations

import ctypes
from functools import cache

import torch

from dovetail.torch_compat.native_symbols import library_function
from dovetail.torch_compat.native_tensors import CODES

CREATE, EMPTY = (f"aoti_torch_{name}" for name in ("create_tensor_from_blob", "new_uninitialized_tensor"))
"""C functions for handles: one on given memory, and one without a tensor. See `native_tensors` for others."""

CATCHING = ("__gxx_personality_v0", "__cxa_begin_catch", "__cxa_end_catch")
"""What catches an exception of C++."""

DTYPE_CODES = {dtype: CODES[dtype] for dtype in (torch.float32, torch.float64, torch.int64)}
"""The dtypes of kernels' tensors."""

_PLAIN = {
    "softmax": "12_softmax_outERNS_6TensorERKS1_lb",
    "log_softmax": "16_log_softmax_outERNS_6TensorERKS1_lb",
    "softmax_backward": "26_softmax_backward_data_outERNS_6TensorERKS1_S4_lN3c1010ScalarTypeE",
    "log_softmax_backward": "30_log_softmax_backward_data_outERNS_6TensorERKS1_S4_lN3c1010ScalarTypeE",
    "gelu": "8gelu_outERNS_6TensorERKS1_St17basic_string_viewIcSt11char_traitsIcEE",
    "gelu_backward": "17gelu_backward_outERNS_6TensorERKS1_S4_St17basic_string_viewIcSt11char_traitsIcEE",
    "bmm": "7bmm_outERNS_6TensorERKS1_S4_",
    "nll_loss": "20nll_loss_forward_outERNS_6TensorES2_RKS1_S4_RKSt8optionalIS1_Ell",
    "nll_loss_backward": "21nll_loss_backward_outERNS_6TensorERKS1_S4_S4_RKSt8optionalIS1_EllS4_",
    "index_select": "16index_select_outERNS_6TensorERKS1_lS4_",
    "gather": "10gather_outERNS_6TensorERKS1_lS4_b",
    "embedding_backward": "24embedding_dense_backwardERKNS_6TensorES3_llb",
    "smooth_l1_loss": "14smooth_l1_lossERKNS_6TensorES3_ld",
    "smooth_l1_loss_backward": "27smooth_l1_loss_backward_outERNS_6TensorERKS1_S4_S4_ld",
    "max": "7max_outERNS_6TensorES2_RKS1_lb",
    "min": "7min_outERNS_6TensorES2_RKS1_lb",
    "scatter_add": "12scatter_add_ERNS_6TensorElRKS1_S4_",
}
"""Functions in `at::cpu`: name and arguments, mangled."""

_MAYBE = "dbSt8optionalIS2_ES5_IdE"
_STUBS = {
    "layer_norm": "RKNS_6TensorES4_S4_lldPS2_S5_S5_ENS0_37LayerNormKernel",
    "layer_norm_backward": f"RKNS_6TensorE{'S4_' * 4}llPS2_S5_S5_ENS0_45LayerNormBackwardKernel",
    "attention": f"RKNS_6TensorE{'S4_' * 4}{_MAYBE}ENS0_44flash_attention_kernel",
    "max_pool2d": "RKNS_6TensorES4_S4_iiiiiiiiENS0_39max_pool2d_kernel",
    "max_pool2d_backward": "RKNS_6TensorES4_S4_ENS0_48max_pool2d_backward_kernel",
    "attention_backward": f"RKNS_6TensorE{'S4_' * 8}{_MAYBE}ENS0_53flash_attention_backward_kernel",
}
"""Stubs of kernels: arguments and name, mangled."""

_BY_CAPABILITY = {"AVX512": ("6AVX512E", "4AVX2E", "7DEFAULTE"), "AVX2": ("4AVX2E", "7DEFAULTE")}


@cache
def kernel_address(name: str) -> int | None:
    """The address of the function that torch calls for an operator here; None where it is not found."""
    if name in _PLAIN:
        return library_function(f"_ZN2at3cpu{_PLAIN[name]}")
    for capability in _BY_CAPABILITY.get(torch.backends.cpu.get_cpu_capability(), ("7DEFAULTE",)):
        cell = library_function(f"_ZN2at6native12DispatchStubIPFv{_STUBS[name]}_DECLARE_DISPATCH_typeEE{capability}")
        kernel = ctypes.c_void_p.from_address(cell).value if cell is not None else None
        if kernel:
            return kernel
    return None
