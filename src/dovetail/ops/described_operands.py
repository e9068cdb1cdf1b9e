"""Calls of which descriptions alone say that operands are what a kernel trusts them to be."""

from __future__ import annotations

from typing import Any

import torch

from dovetail.errors import RefusedOperands
from dovetail.ir.program import Node, Value, map_operands, meta_symbols
from dovetail.ops.preconditions import refuse_operands
from dovetail.torch_compat.dispatch import Overload, schema_of

# Their preconditions are about shapes, not about contents.
_ABOUT_SHAPES = frozenset({"_scaled_dot_product_flash_attention_for_cpu"})


def holds_by_description(node: Node) -> bool:
    """Whether a call's preconditions hold because its operands are as they are described, with sizes that are known.

    Not checked: that descriptions are true. Cost: a look at shapes; the call itself does not run, or torch would import
    what describes its results.
    """
    if not isinstance(node.target, Overload) or schema_of(node.target).name not in _ABOUT_SHAPES:
        return False
    if any(not value.is_tensor or any(meta_symbols(value.meta)) for value in node.operands()) or any(node.symbols()):
        return False
    args: Any = [map_operands(operand, _without_data) for operand in node.args]
    kwargs: Any = {name: map_operands(operand, _without_data) for name, operand in node.kwargs}
    try:
        refuse_operands(node.target, args, kwargs)
    except RefusedOperands:
        return False
    return True


def _without_data(value: Value) -> Any:
    meta = value.tensor
    shape: Any = meta.shape
    stride: Any = meta.stride
    return torch.empty_strided(shape, stride, dtype=meta.dtype, device="meta")
