"""Tensors that show their bytes otherwise: conjugate ones, and negative ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch

from dovetail.ir.program import Value
from dovetail.torch_compat.dispatch import Overload

_CONJUGATE, _NEGATIVE = torch.ops.aten._conj.default, torch.ops.aten._neg_view.default


def views_shown(tensors: Iterable[tuple[Value, torch.Tensor]]) -> Mapping[Value, Sequence[Overload]]:
    """The views that show the bytes of each tensor as it does, where these show something else."""
    found = {
        value: [*([_CONJUGATE] if tensor.is_conj() else []), *([_NEGATIVE] if tensor.is_neg() else [])]
        for value, tensor in tensors
    }
    return {value: views for value, views in found.items() if views}
