"""Kernels of torch's that are written in Python, without what their first call would import."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from types import CellType, FunctionType
from typing import Any

import torch._decomp.decompositions
import torch._meta_registrations
import torch._prims
import torch._prims_common
import torch._refs
import torch._refs.fft
import torch._refs.linalg
import torch._refs.nn.functional
import torch._refs.special
from torch._compile import _disable_dynamo
from torch._decomp import global_decomposition_table

_MARK = "__dynamo_disable"
_SKIPPING = _disable_dynamo(lambda: None).__code__


@contextmanager
def python_kernels_without_dynamo() -> Iterator[None]:
    """Inside, torch's kernels in Python (those of the meta device) run without importing Dynamo, which takes seconds.

    Many of them are wrapped so that Dynamo does not look into them, and the wrapper's first call imports it. Nothing is
    done where Dynamo is loaded already. What is marked is unmarked at the end: compilations later on are as ever.
    """
    marked = [] if "torch._dynamo" in sys.modules else [fn for fn in skipped_functions() if _MARK not in vars(fn)]
    for fn in marked:
        setattr(fn, _MARK, fn)
    try:
        yield
    finally:
        for fn in marked:
            vars(fn).pop(_MARK, None)


def skipped_functions() -> list[Any]:
    """The functions behind those wrappers, as far as kernels in Python call them."""
    return [inner for function in kernel_functions() if function.__code__ is _SKIPPING for inner in _inside(function)]


@cache
def kernel_functions() -> tuple[FunctionType, ...]:
    """Kernels in Python, what they call of torch's, and what those are wrapped around; as of the first call."""
    modules = (
        *(torch._meta_registrations, torch._decomp.decompositions, torch._prims, torch._prims_common, torch),
        *(torch._refs, torch._refs.nn.functional, torch._refs.linalg, torch._refs.special, torch._refs.fft),
    )
    tables = (*map(vars, modules), *global_decomposition_table.values())
    left = [value for table in tables for value in list(table.values()) if isinstance(value, FunctionType)]
    found: dict[int, FunctionType] = {}
    while left:
        function = left.pop()
        if id(function) not in found:
            found[id(function)] = function
            left += _inside(function)
    return tuple(found.values())


def _inside(function: FunctionType) -> list[FunctionType]:
    if function.__closure__ is None:
        return []
    return [cell.cell_contents for cell in function.__closure__ if _is_function(cell)]


def _is_function(cell: CellType) -> bool:
    try:
        return isinstance(cell.cell_contents, FunctionType)
    except ValueError:  # a cell that was never filled
        return False
