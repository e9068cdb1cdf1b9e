"""A primitive of attention without the logarithms of its sums, which only a gradient reads.

    y = prims.ATTENTION(query, key, value, mask, is_causal, scale)

It is made of `_scaled_dot_product_flash_attention_for_cpu` where a program runs, and is in no file. mask: what is added
to scores, or None. scale: None for one over the root of the head's size. All sizes are known: f32[batch, heads,
queries, size] by f32[batch, heads, keys, size].
"""

from __future__ import annotations

import math

import torch

from dovetail.ir.prim import Prim
from dovetail.ir.program import Node, Operand, TensorMeta, Value
from dovetail.ops.arguments import arguments_of
from dovetail.ops.panels import WIDTH

_DIMS = 4
_MOST_ELEMENTS = 1 << 14  # of keys, or of values, of a head in whole panels: they lie on the stack
FEW_QUERIES = 7
"""So many queries, or fewer, read keys where they lie: copies of these would take longer."""
_MOST_SCORES, _MOST_SIZE = 1 << 13, 256  # of few queries: scores of a head lie on the stack, a row in registers


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    is_causal: bool,
    scale: float | None,
) -> torch.Tensor:
    operator = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    made: torch.Tensor = operator(query, key, value, 0.0, is_causal, attn_mask=mask, scale=scale)[0]
    return made


ATTENTION = Prim("attention", _attention, "prims.ATTENTION", takes_memory=True)


def short_attention_of(node: Node, most_keys: int) -> tuple[Operand, ...] | None:
    """The arguments of `ATTENTION` for a node over few keys, or of few queries, whose heads have elements side by side;
    None for others.

    Not checked: that the second result is read by nobody.
    """
    if node.target is not torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default:
        return None
    arguments, results = arguments_of(node), node.results()
    given = [arguments[name] for name in ("query", "key", "value")]
    mask, is_causal, scale = arguments.get("attn_mask"), arguments.get("is_causal", False), arguments.get("scale")
    is_usual = arguments.get("dropout_p", 0.0) == 0.0 and isinstance(is_causal, bool)
    if not is_usual or not (scale is None or isinstance(scale, float)):
        return None
    if not all(isinstance(each, Value) and has_heads(each.tensor) for each in (*given, results[0])):
        return None
    query, key, value = (each.tensor for each in given if isinstance(each, Value))
    (batch, heads, queries, size), keys = map(int, query.shape), int(key.shape[2])  # type: ignore[arg-type]
    if not query.shape[:2] == key.shape[:2] == value.shape[:2] or key.shape[3] != size or key.shape != value.shape:
        return None
    held = math.prod(-(-count // WIDTH) * WIDTH for count in (keys, size))
    if queries <= FEW_QUERIES:
        fits = queries * keys <= _MOST_SCORES and size <= _MOST_SIZE
    else:
        fits = keys <= most_keys and held <= _MOST_ELEMENTS
    if not fits:
        return None
    if mask is not None and not (isinstance(mask, Value) and is_mask(mask.tensor, (batch, heads, queries, keys))):
        return None
    return *given, mask, is_causal, scale


def has_heads(meta: TensorMeta) -> bool:
    """Whether a tensor has four known dimensions of float32 on a CPU, none of them empty, the last side by side."""
    sizes = [each for each in (*meta.shape, *meta.stride, meta.offset) if isinstance(each, int)]
    is_known = len(meta.shape) == _DIMS and len(sizes) == 2 * _DIMS + 1 and min(sizes[:_DIMS]) > 0
    is_plain = meta.dtype is torch.float32 and meta.device.type == "cpu"
    return is_known and is_plain and (meta.stride[3] == 1 or meta.shape[3] == 1)


def is_mask(meta: TensorMeta, sizes: tuple[int, ...]) -> bool:
    """Whether a tensor of float32 is broadcast to scores of these sizes, those of all keys side by side."""
    numbers = (*meta.shape, *meta.stride, meta.offset)
    if not all(isinstance(each, int) for each in numbers) or not 1 < len(meta.shape) <= len(sizes):
        return False
    fits = all(a in (1, b) for a, b in zip(meta.shape, sizes[-len(meta.shape) :], strict=True))
    is_plain = meta.dtype is torch.float32 and meta.device.type == "cpu"
    return fits and is_plain and meta.shape[-1] == sizes[-1] and (meta.stride[-1] == 1 or sizes[-1] == 1)
