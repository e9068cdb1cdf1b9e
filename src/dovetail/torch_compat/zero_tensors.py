"""Fakes of tangents. Those that are zero are tensors without memory, of a kind of their own.

Torch (2.11 to 2.13) has kernels for three views of such tensors that run above fakes. What they make of a fake is no
fake: a plain tensor on the meta device, which the next operator refuses beside others, or takes its device from. And
the answers that torch's fakes remember do not tell such tensors from others, nor tangents by the memory behind them.
Source: the `ZeroTensor` entries of `native_functions.yaml`; `FakeTensorMode._cache_key`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from dovetail.torch_compat.dispatch import Overload

_aten = torch.ops.aten
_VIEWS: tuple[Overload, ...] = (_aten.view.default, _aten._reshape_alias.default, _aten.as_strided.default)
_TANGENT: Overload = _aten._new_zeros_with_same_feature_meta.default
_KEY: Any = torch._C.DispatchKey.ZeroTensor


@contextmanager
def views_of_zero_fakes() -> Iterator[None]:
    """While active, views of such fakes are fakes; those of other tensors are as ever, in all threads. Cost: 40 us."""
    library = torch.library.Library("aten", "IMPL")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # kernels are replaced
            for op in _VIEWS:
                library.impl(op, _below(op), _KEY.name, with_keyset=True, allow_override=True)
        yield
    finally:
        library._destroy()


@contextmanager
def answered_anew(op: object, operands: Sequence[Any]) -> Iterator[None]:
    """While active, fakes are asked anew if the operator takes or makes what their answers do not tell from others.

    That is a zero, among its operands or in a list of them, or memory of tangents as large as that behind a view.
    """
    parts = [part for x in operands for part in (x if isinstance(x, list | tuple) else (x,))]
    fakes = [x for x in parts if isinstance(x, FakeTensor) and (op is _TANGENT or x._is_zerotensor())]
    if not fakes:
        yield
        return
    mode = fakes[0].fake_mode
    was_enabled, mode.cache_enabled = mode.cache_enabled, False
    try:
        yield
    finally:
        mode.cache_enabled = was_enabled


def _below(op: Overload) -> Callable[..., Any]:
    """What an operator does with its tensor once nothing looks at what kind of zero it is."""
    keys_below: Any = torch._C._dispatch_keyset_full_after(_KEY)

    def run(keys: Any, *args: Any, **keywords: Any) -> Any:
        return op.redispatch(keys & keys_below, *args, **keywords)

    return run
