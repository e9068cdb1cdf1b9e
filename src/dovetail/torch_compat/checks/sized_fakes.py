"""Checks of `torch_compat.sized_fakes`."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from dovetail.torch_compat import sized_fakes
from dovetail.torch_compat.checks.difference import first_difference
from dovetail.torch_compat.data_sizes import size_with_hint, with_shape_env

_aten: Any = torch.ops.aten


def check_sized_on_fakes() -> str | None:
    """Pools and rows of numbers have the sizes, strides and dtypes of kernels, for sizes that are symbols."""
    found: list[tuple[str, object, object]] = []
    formats = {2: torch.channels_last, 3: torch.channels_last_3d}
    for rank in (2, 3):
        plain = torch.ones(2, 4, *[6] * rank)
        pools = (getattr(_aten, f"avg_pool{rank}d").default, getattr(_aten, f"max_pool{rank}d_with_indices").default)
        for op in pools:
            for image in (plain, plain.to(memory_format=formats[rank]), plain[0]):
                for more in ((), ([2] * rank,), ([2] * rank, [1] * rank)):
                    found.append(_compared(op, (image, [4] * rank, *more), {}))
                whole = (image, [6] * rank)
                found.append(_compared(op, whole, {}))
            found.append(_compared(op, (plain, [4] * rank, [3] * rank, [1] * rank), {"ceil_mode": True}))
    for op in (_aten.linspace.default, _aten.logspace.default):
        found += [_compared(op, (0, 1, 5), {"dtype": dtype}) for dtype in (None, torch.float64, torch.int64)]
    for name in ("hann_window", "hamming_window", "blackman_window", "bartlett_window"):
        packet = getattr(_aten, name)
        found += [_compared(packet.default, (5,), {}), _compared(packet.periodic, (5, False), {"dtype": torch.float64})]
    return first_difference(*found)


def _compared(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, object, object]:
    mode = FakeTensorMode(shape_env=ShapeEnv())
    env = with_shape_env(mode)
    symbols: dict[int, Any] = {}

    def symbolic(each: Any) -> Any:
        if isinstance(each, torch.Tensor):
            return mode.from_tensor(each)
        if isinstance(each, list):
            return [symbolic(one) for one in each]
        is_size = type(each) is int and each > 3
        return symbols.setdefault(each, size_with_hint(env, each)) if is_size else each

    given = tuple(map(symbolic, args))
    with mode:
        told = sized_fakes.sized_on_fakes(op, given, kwargs)
    real = op(*args, **kwargs)
    results = [(each,) if isinstance(each, torch.Tensor) else tuple(each) for each in (told, real)]
    seen = [[(tuple(map(int, x.shape)), tuple(map(int, x.stride())), x.dtype) for x in each] for each in results]
    shapes = [tuple(each.shape) if isinstance(each, torch.Tensor) else each for each in args]
    return f"{op} of {shapes} with {kwargs}", seen[0], seen[1]


CHECKS = (check_sized_on_fakes,)
