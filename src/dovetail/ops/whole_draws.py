"""Which draws give whole numbers of a small range, so that a narrower type holds each of them.

A narrower type gives back the same bits: zero is +0 in every kind of draw, and no draw gives NaN.
"""

from __future__ import annotations

import torch

from dovetail.ir.prim import Prim
from dovetail.ir.program import Node
from dovetail.ops.prims import FunctionalForm
from dovetail.torch_compat.dispatch import Overload, schema_of

_ZERO_OR_ONE = frozenset({"aten::bernoulli", "aten::bernoulli_"})


def holding_type(node: Node) -> torch.dtype | None:
    """The narrowest type that holds all that a draw gives, where it is narrower than that of its one result.

    Source: `at::native::bernoulli_impl_`, which writes `static_cast<scalar_t>(draw)` of a bool.
    """
    results = node.results()
    if len(results) != 1 or not results[0].is_tensor or not _gives_zero_or_one(node):
        return None
    return torch.bool if results[0].tensor.dtype.itemsize > torch.bool.itemsize else None


def _gives_zero_or_one(node: Node) -> bool:
    target = node.target
    if isinstance(target, Prim) and isinstance(target.run, FunctionalForm):
        target = target.run.op
    if not isinstance(target, Overload):
        return False
    schema = schema_of(target)
    return f"{schema.namespace}::{schema.name}" in _ZERO_OR_ONE
