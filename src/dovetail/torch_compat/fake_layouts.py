"""Operators whose results torch's fakes lay out otherwise than the operators themselves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._prims_common import suggest_memory_format
from torch.utils._python_dispatch import TorchDispatchMode

_aten = torch.ops.aten


def as_laid_out(op: Any, args: Sequence[Any], result: Any) -> Any:
    """The results of an operator on fakes, in the layout that the operator gives them.

    Batch norm on CPU: its fake keeps the strides of the input, and the kernel those of a memory format.
    """
    rule = _RULES.get(op)
    return result if rule is None else rule(args[0], result)


class RightLayouts(TorchDispatchMode):
    """While active, above a mode of fakes, operators give fakes in the layout of the operators themselves."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run the operator, and put its results right."""
        return as_laid_out(func, args, func(*args, **(kwargs or {})))


def _batch_norm(x: torch.Tensor, result: Sequence[Any]) -> Any:
    made, *others = result
    if x.device.type != "cpu" or x.dim() < 2 or x.is_contiguous():
        return result
    right = torch.empty(made.shape, dtype=made.dtype, device=made.device, memory_format=_format_of(x))
    return result if right.stride() == made.stride() else (right, *others)


def _format_of(x: torch.Tensor) -> torch.memory_format:
    for rank, memory_format in ((4, torch.channels_last), (5, torch.channels_last_3d)):
        if x.dim() == rank and x.is_contiguous(memory_format=memory_format):
            return memory_format
    found: torch.memory_format = suggest_memory_format(x)
    return found


_RULES: dict[Any, Callable[[torch.Tensor, Any], Any]] = dict.fromkeys(
    (
        _aten.native_batch_norm.default,
        _aten._native_batch_norm_legit.default,
        _aten._native_batch_norm_legit.no_stats,
        _aten._native_batch_norm_legit_no_training.default,
    ),
    _batch_norm,
)
