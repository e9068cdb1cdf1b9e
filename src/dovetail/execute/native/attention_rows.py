"""Attention over few keys, or of few queries, as rows: of known sizes, over heads that lie anywhere."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from dovetail.execute.native.attention_text import attention_function, usual_scale
from dovetail.execute.native.claim_base import OwnKernelBase
from dovetail.execute.native.driver import LOOSE
from dovetail.execute.native.few_queries_text import few_queries_function
from dovetail.execute.native.panel_rows import known_sizes
from dovetail.execute.native.panels import items_of, multiplies_panels, usual_tile
from dovetail.execute.native.rows import Address, Addresses, ReadyRow, Storages
from dovetail.ir.program import Node, Operand, TensorMeta, Value
from dovetail.ops.attention import ATTENTION, FEW_QUERIES, has_heads, is_mask

_MORE = struct.Struct("22qf4x")


@dataclass(frozen=True, slots=True)
class AttentionClaim(OwnKernelBase):
    """See `rows.RowClaim`. operands: query, key, value, and the mask if there is one. sizes: batch, heads, queries,
    keys, size of a head.
    """

    node: Node
    operands: tuple[Operand, ...]
    result: Value
    sizes: tuple[int, int, int, int, int]
    is_causal: bool
    scale: float
    into: Value | None = None
    layout: None = None
    element: str = "i8"

    @property
    def pays_alone(self) -> bool:
        """By itself the node runs torch's kernel."""
        return True


def attention_claim(node: Node) -> AttentionClaim | None:
    """The claim on a node, as far as descriptions say."""
    if node.target is not ATTENTION or node.kwargs or len(node.results()) != 1 or not multiplies_panels():
        return None
    *given, is_causal, scale = node.args
    operands, (result,) = tuple(each for each in given if each is not None), node.results()
    tensors = [each for each in operands if isinstance(each, Value) and each.is_tensor]
    if len(tensors) < len(operands) or not all(has_heads(each.tensor) for each in (*tensors[:3], result)):
        return None
    (batch, heads, queries, size), keys = known_sizes(tensors[0].tensor), known_sizes(tensors[1].tensor)[2]
    if not all(is_mask(each.tensor, (batch, heads, queries, keys)) for each in tensors[3:]):
        return None
    factor = scale if isinstance(scale, float) else usual_scale(size)
    return AttentionClaim(node, operands, result, (batch, heads, queries, keys, size), bool(is_causal), factor)


def attention_row(claims: Sequence[AttentionClaim], _: Storages, addresses: Addresses) -> ReadyRow | None:
    """The row of a claim."""
    (claim,) = claims
    batch, heads, queries, keys, size = claim.sizes
    values = [claim.result, *(each for each in claim.operands if isinstance(each, Value))]
    has_mask = len(claim.operands) > 3
    values += [] if has_mask else [claim.result]  # a pointer that is not read
    steps = [step for value in values for step in _steps(value.tensor)]
    more = _MORE.pack(*claim.sizes, *steps, has_mask, claim.is_causal, claim.scale)
    pointers = tuple(addresses.get(value, Address(value)) for value in values)
    items, tile = 2 * items_of(batch * heads * queries, keys, size), usual_tile()
    function = few_queries_function(tile, size) if queries <= FEW_QUERIES else attention_function(tile)
    return ReadyRow(function, items, pointers, more=more, marks=LOOSE)


def _steps(meta: TensorMeta) -> list[int]:
    """Elements from one to the next: of the batch, of heads, of rows; 0 where one is read for all."""
    dims = zip(meta.shape[:-1], meta.stride[:-1], strict=True)
    found = [int(stride) if size != 1 else 0 for size, stride in dims]  # type: ignore[arg-type]
    return [0] * (3 - len(found)) + found
