"""Checks of values that functions of torch make in eager mode, and leave out where values are not known.

    F.one_hot(labels, 10)      labels are looked at before: on fakes, a label of 10 would be a row of zeros

They are recorded before the function, and raise what eager mode raises.
Source: `one_hot` (Onehot.cpp) and `quantile_checks` (Sorting.cpp) of torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from dovetail.torch_compat.fakes import is_fake

_assert = torch.ops.aten._assert_async.msg
_ONE_HOT = torch.nn.functional.one_hot
_QUANTILES = frozenset({torch.quantile, torch.nanquantile, torch.Tensor.quantile, torch.Tensor.nanquantile})


def check_values(func: Any, args: Sequence[Any], keywords: Mapping[str, Any]) -> None:
    """Record the checks of a call; nothing for most functions."""
    if func is _ONE_HOT:
        _check_classes(*args, **keywords)
    elif func in _QUANTILES:
        _check_quantiles(args[1] if len(args) > 1 else keywords.get("q"))


def _check_classes(tensor: Any, num_classes: Any = -1) -> None:
    if not (isinstance(tensor, torch.Tensor) and is_fake(tensor)) or tensor.dtype is not torch.int64:
        return
    _assert((tensor >= 0).all(), "Class values must be non-negative.")
    if not (isinstance(num_classes, int) and num_classes == -1):
        _assert((tensor < num_classes).all(), "Class values must be smaller than num_classes.")


def _check_quantiles(q: Any) -> None:
    if isinstance(q, torch.Tensor) and is_fake(q):
        _assert(((q >= 0) & (q <= 1)).all(), "quantile() q values must be in the range [0, 1]")
