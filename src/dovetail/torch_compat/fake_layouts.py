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

    Batch norm on CPU: its fake keeps the strides of the input, and the kernel those of a memory format. Before torch
    2.13, fakes of two more are always contiguous: kernels that pad by what lies inside keep channels last on CPU, and
    zeros are laid out as the tensor in whose place they are.
    """
    rule = _RULES.get(op)
    return result if rule is None else rule(args[0], result)


def as_on_cpu(op: Any, args: Sequence[Any], results: Sequence[Any]) -> Sequence[Any]:
    """An operator's results on the CPU, from those on the meta device: batch norm keeps nothing in evaluation."""
    place = _TRAINING.get(op)
    if place is None or (place >= 0 and (place >= len(args) or args[place] is not False)):
        return results
    made, *others = _laid_out_as_on_cpu(args[0], results)
    return [made, *(torch.empty(0, dtype=other.dtype, device=other.device) for other in others)]


class RightLayouts(TorchDispatchMode):
    """While active, above a mode of fakes, operators give fakes in the layout of the operators themselves."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run the operator, and put its results right."""
        return as_laid_out(func, args, func(*args, **(kwargs or {})))


def _batch_norm(x: torch.Tensor, result: Sequence[Any]) -> Any:
    return _laid_out_as_on_cpu(x, result) if x.device.type == "cpu" else result


def _laid_out_as_on_cpu(x: torch.Tensor, result: Sequence[Any]) -> Any:
    made, *others = result
    if x.dim() < 2 or x.is_contiguous():
        return result
    right = torch.empty(made.shape, dtype=made.dtype, device=made.device, memory_format=_format_of(x))
    return result if right.stride() == made.stride() else (right, *others)


def _format_of(x: torch.Tensor) -> torch.memory_format:
    for rank, memory_format in ((4, torch.channels_last), (5, torch.channels_last_3d)):
        if x.dim() == rank and x.is_contiguous(memory_format=memory_format):
            return memory_format
    found: torch.memory_format = suggest_memory_format(x)
    return found


def _padded(x: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    wanted = torch.channels_last
    if x.device.type != "cpu" or x.dim() != 4 or suggest_memory_format(x) != wanted:
        return result
    if result.is_contiguous(memory_format=wanted):
        return result
    return torch.empty(result.shape, dtype=result.dtype, device=result.device, memory_format=wanted)


def _zeroed(x: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x, dtype=result.dtype)


_RULES: dict[Any, Callable[[torch.Tensor, Any], Any]] = {
    _aten.reflection_pad2d.default: _padded,
    _aten.replication_pad2d.default: _padded,
    _aten.zero.default: _zeroed,
}
_RULES |= dict.fromkeys(
    (
        _aten.native_batch_norm.default,
        _aten._native_batch_norm_legit.default,
        _aten._native_batch_norm_legit.no_stats,
        _aten._native_batch_norm_legit_no_training.default,
        _aten._native_batch_norm_legit_functional.default,
        _aten._batch_norm_with_update.default,
        _aten._batch_norm_with_update_functional.default,
        _aten._batch_norm_no_update.default,
    ),
    _batch_norm,
)
# Where these have the argument that tells training from evaluation; -1 for what only evaluates.
_TRAINING: dict[Any, int] = {
    _aten.native_batch_norm.default: 5,
    _aten._native_batch_norm_legit.default: 5,
    _aten._native_batch_norm_legit_no_training.default: -1,
}
