"""Checks of `torch_compat.python_kernels`."""

from __future__ import annotations

import sys

import torch

from dovetail.torch_compat import python_kernels
from dovetail.torch_compat.checks.difference import first_difference


def check_python_kernels_without_dynamo() -> str | None:
    """Functions that Dynamo is to skip are found, run without it, and are as before afterwards."""
    is_loaded = "torch._dynamo" in sys.modules
    functions = python_kernels.skipped_functions()
    before = [dict(vars(function)) for function in functions]
    with python_kernels.python_kernels_without_dynamo():
        x = torch.empty(4, 8, device="meta")
        shape = torch.nn.functional.gelu(x).shape
        torch.addmm(torch.empty(3, device="meta"), x, torch.empty(8, 3, device="meta"))
    return first_difference(
        ("the shape of a result", tuple(shape), (4, 8)),
        ("the claim that Dynamo is loaded", "torch._dynamo" in sys.modules, is_loaded),
        ("the claim that functions are marked", not is_loaded and [dict(vars(f)) for f in functions] != before, False),
    )


def check_skipped_functions() -> str | None:
    """Those of pointwise kernels are found, under whatever else they are wrapped in."""
    names = {function.__name__ for function in python_kernels.skipped_functions()}
    return first_difference(("what is missing", {"gelu", "add"} - names, set()))


CHECKS = (check_python_kernels_without_dynamo, check_skipped_functions)
