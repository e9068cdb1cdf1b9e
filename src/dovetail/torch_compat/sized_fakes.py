"""What operators give on fakes that take sizes as plain numbers, where these are symbols.

Source: `pool2d_shape_check` and `pooling_output_shape` (Pool.h) of torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._prims_common import suggest_memory_format

from dovetail.torch_compat.nested import has_symbolic_numbers

_aten: Any = torch.ops.aten
_PLANE = 2


def sized_on_fakes(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What an operator gives on fakes, if a number that it takes is a symbol; None for all other calls."""
    fake = SIZED_FAKES.get(op)
    if fake is None:
        return None
    return fake(*args, **kwargs) if has_symbolic_numbers(args) else None


def _pooled(
    rank: int, x: torch.Tensor, kernel: Any, stride: Any, padding: Any, dilation: Any, rounds_up: bool
) -> torch.Tensor:
    kernels, pads, steps, spreads = (_each(each, rank) for each in (kernel, padding, stride or kernel, dilation))
    numbers = zip(x.shape[-rank:], kernels, pads, steps, spreads, strict=True)
    sizes = [_pooled_size(size, k, pad, step, spread, rounds_up) for size, k, pad, step, spread in numbers]
    if any(type(size) is int and size < 1 for size in sizes):
        raise RuntimeError(f"the result of a pool would have the sizes {sizes}: the image is too small")
    made = x.new_empty((*x.shape[:-rank], *sizes))
    return made.to(memory_format=suggest_memory_format(x)) if x.dim() == rank + 2 else made


def _pooled_size(size: Any, kernel: Any, pad: Any, stride: Any, dilation: Any, rounds_up: bool) -> Any:
    reach = size + 2 * pad - dilation * (kernel - 1) - 1
    count = (reach + (stride - 1 if rounds_up else 0)) // stride + 1
    if rounds_up and (count - 1) * stride >= size + pad:
        count -= 1
    return count


def _each(numbers: Any, rank: int) -> list[Any]:
    given = list(numbers) if isinstance(numbers, list | tuple) else [numbers]
    return given * rank if len(given) == 1 else given


def _means(rank: int) -> Callable[..., torch.Tensor]:
    def fake(
        x: torch.Tensor, kernel: Any, stride: Any = (), padding: Any = 0, ceil_mode: bool = False, *_: Any, **__: Any
    ) -> torch.Tensor:
        made = _pooled(rank, x, kernel, stride, padding, 1, ceil_mode)
        return made if rank == _PLANE else made.new_empty(made.shape)  # means of volumes have no format

    return fake


def _largest(rank: int) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    def fake(
        x: torch.Tensor, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        values = _pooled(rank, x, kernel, stride, padding, dilation, ceil_mode)
        return values, values.new_empty_strided(values.shape, values.stride(), dtype=torch.int64)

    return fake


def _spaced(start: Any, end: Any, steps: Any, *_: Any, dtype: Any = None, device: Any = None, **__: Any) -> Any:
    is_complex = isinstance(start, complex) or isinstance(end, complex)
    usual = torch.get_default_dtype().to_complex() if is_complex else torch.get_default_dtype()
    return torch.empty((steps,), dtype=dtype or usual, device=device)


def _window(length: Any, *_: Any, dtype: Any = None, device: Any = None, **__: Any) -> torch.Tensor:
    return torch.empty((length,), dtype=dtype or torch.get_default_dtype(), device=device)


SIZED_FAKES: dict[Any, Callable[..., Any]] = {
    **{getattr(_aten, f"avg_pool{rank}d").default: _means(rank) for rank in (2, 3)},
    **{getattr(_aten, f"max_pool{rank}d_with_indices").default: _largest(rank) for rank in (2, 3)},
    **{getattr(_aten, name).default: _spaced for name in ("linspace", "logspace")},
    **{
        getattr(getattr(_aten, name), overload): _window
        for name in ("hann_window", "hamming_window", "blackman_window", "bartlett_window")
        for overload in ("default", "periodic")
    },
}
"""By operator: from its own arguments."""
