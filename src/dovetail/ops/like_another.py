"""Operators that make a tensor like another one, of which they read nothing but how it is described.

ones_like(x)   is   ones(x.shape, dtype=x.dtype)
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from dovetail.ir.program import Node, Operand, TensorMeta, Value
from dovetail.ir.sizes import Size, is_same_product, product
from dovetail.ops.arguments import arguments_of
from dovetail.torch_compat.dispatch import Overload

_aten: Any = torch.ops.aten
_ALONE: dict[Overload, Overload] = {
    _aten.zeros_like.default: _aten.zeros.default,
    _aten.ones_like.default: _aten.ones.default,
    _aten.full_like.default: _aten.full.default,
    _aten.empty_like.default: _aten.empty.memory_format,
    _aten.new_zeros.default: _aten.zeros.default,
    _aten.new_ones.default: _aten.ones.default,
    _aten.new_full.default: _aten.full.default,
    _aten.new_empty.default: _aten.empty.memory_format,
}
"""What gives the same, if told sizes and dtype."""


def model_of(node: Node) -> Value | None:
    """The operand that a node's result is like, if `without_model` can do without it."""
    if not isinstance(node.target, Overload) or node.target not in _ALONE or len(node.results()) != 1:
        return None
    arguments, result = arguments_of(node), node.results()[0]
    model = arguments["self"]
    is_plain = arguments["layout"] in (None, torch.strided) and not arguments["pin_memory"]
    if not is_plain or not isinstance(model, Value) or not result.is_tensor or not _is_in_order(result.tensor):
        return None
    return model


def _is_in_order(meta: TensorMeta) -> bool:
    """Whether strides are those of a new tensor, in dimensions of size 1 as well."""
    reach: Size = 1
    for size, stride in zip(reversed(meta.shape), reversed(meta.stride), strict=True):
        if not is_same_product(stride, reach):
            return False
        reach = product((reach, size)) if size != 0 else reach
    return True


def without_model(node: Node) -> Node:
    """The node that makes the same contiguous tensor without an operand to be like. node: one that has `model_of`."""
    assert isinstance(node.target, Overload), "others have no model"
    arguments, meta = arguments_of(node), node.results()[0].tensor
    fill: tuple[Operand, ...] = (arguments["fill_value"],) if "fill_value" in arguments else ()
    kwargs = (("dtype", meta.dtype), ("device", meta.device), ("pin_memory", False))
    return replace(node, target=_ALONE[node.target], args=(list(meta.shape), *fill), kwargs=kwargs)
