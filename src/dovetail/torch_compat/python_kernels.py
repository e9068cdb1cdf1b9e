"""Kernels of torch's that are written in Python, without what their first call would import."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import CellType, FunctionType
from typing import Any

import torch._refs
import torch._refs.nn.functional
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
    tables = (vars(torch._refs), vars(torch._refs.nn.functional), *global_decomposition_table.values())
    left = [value for table in tables for value in list(table.values()) if isinstance(value, FunctionType)]
    seen = {id(function) for function in left}
    found: list[Any] = []
    while left:
        function = left.pop()
        inner = [cell.cell_contents for cell in function.__closure__ or () if _is_function(cell)]
        if function.__code__ is _SKIPPING:
            found += inner
        left += [one for one in inner if id(one) not in seen]
        seen.update(map(id, inner))
    return found


def _is_function(cell: CellType) -> bool:
    try:
        return isinstance(cell.cell_contents, FunctionType)
    except ValueError:  # a cell that was never filled
        return False
