"""Products by weights in panels as rows: of known sizes, over operands that lie in order.

Such a node has no bits of torch's to keep: the same function runs whether it is a row of a cluster or a call by itself,
so nothing is tried before it is claimed.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from dovetail.execute.native.claim_base import OwnKernelBase
from dovetail.execute.native.driver import LOOSE
from dovetail.execute.native.panel_text import panel_function
from dovetail.execute.native.panels import Finish, finish_of, items_of, multiplies_panels, usual_tile
from dovetail.execute.native.rows import Address, Addresses, ReadyRow, Storages
from dovetail.ir.prim import Prim
from dovetail.ir.program import Node, Operand, TensorMeta, Value
from dovetail.ops.panels import PanelLinear, panels_shape

_MORE = struct.Struct("5q2fq")


@dataclass(frozen=True, slots=True)
class PanelClaim(OwnKernelBase):
    """See `rows.RowClaim`. operands: x, panels, and the bias if there is one. sizes: rows, inputs, outputs, panels."""

    node: Node
    operands: tuple[Operand, ...]
    result: Value
    sizes: tuple[int, int, int, int]
    finish: Finish
    into: Value | None = None
    layout: None = None
    element: str = "i8"


def panel_claim(node: Node) -> PanelClaim | None:
    """The claim on a node, as far as descriptions say."""
    run = node.target.run if isinstance(node.target, Prim) else None
    if not isinstance(run, PanelLinear) or node.kwargs or len(node.results()) != 1 or not multiplies_panels():
        return None
    x, panels, outputs, *rest = node.args
    operands, finish = tuple(each for each in (x, panels, *rest) if each is not None), finish_of(run.activation)
    tensors = [each for each in operands if isinstance(each, Value) and each.is_tensor]
    if finish is None or len(tensors) < len(operands) or not isinstance(outputs, int):
        return None
    if not all(is_in_order(value.tensor) for value in (*tensors, node.results()[0])):
        return None
    shape, (count, *_) = known_sizes(tensors[0].tensor), known_sizes(tensors[1].tensor)
    if known_sizes(tensors[1].tensor) != panels_shape(outputs, shape[-1]):
        return None
    if len(tensors) > 2 and known_sizes(tensors[2].tensor) != (outputs,):
        return None
    rows = tensors[0].tensor.numel()
    assert isinstance(rows, int), "sizes are known"
    return PanelClaim(node, operands, node.results()[0], (rows // shape[-1], shape[-1], outputs, count), finish)


def is_in_order(meta: TensorMeta) -> bool:
    """Whether a tensor of float32 on the CPU has known sizes, none of them zero, and its elements lie in order."""
    sizes = known_sizes(meta)
    is_plain = meta.dtype is torch.float32 and meta.device.type == "cpu" and len(sizes) == len(meta.shape) > 0
    return is_plain and 0 not in sizes and meta.is_contiguous()


def known_sizes(meta: TensorMeta) -> tuple[int, ...]:
    """The sizes that are known."""
    return tuple(size for size in meta.shape if isinstance(size, int))


def panel_row(claims: Sequence[PanelClaim], _: Storages, addresses: Addresses) -> ReadyRow | None:
    """The row of a claim."""
    (claim,) = claims
    rows, inputs, outputs, _count = claim.sizes
    has_bias = len(claim.operands) > 2
    values = [claim.result, *(value for value in claim.operands if isinstance(value, Value))]
    values += [] if has_bias else [claim.result]  # a pointer that is not read
    pointers = tuple(addresses.get(value, Address(value)) for value in values)
    more = _MORE.pack(*claim.sizes, has_bias, *claim.finish)
    return ReadyRow(panel_function(usual_tile()), items_of(rows, inputs, outputs), pointers, more=more, marks=LOOSE)
