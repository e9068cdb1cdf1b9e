"""Every ATen overload, for tests over all of them."""

from __future__ import annotations

from functools import cache

import torch

from dovetail.torch_compat.dispatch import Overload, overloads


@cache
def aten_overloads() -> tuple[Overload, ...]:
    """All overloads of the namespace `aten`, in order of name."""
    names = {
        name.removeprefix("aten::").partition(".")[0]
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("aten::")
    }
    return tuple(overload for name in sorted(names) for overload in overloads("aten", name))
