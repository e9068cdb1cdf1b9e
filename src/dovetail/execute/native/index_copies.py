"""Rows that copy parts of one tensor to places of another one that an index tells (`index_copy_`): keys into a cache.

slots: 1, pointers (what is written, index, source), blocks, places, bytes of a part; bytes from one block to the
next and from one place to the next, of what is written; and the same of the source
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import prod

import torch

from dovetail.execute.native.bounds import Bounds, check_row
from dovetail.execute.native.claim_base import PlacedBase
from dovetail.execute.native.copies import blocks_of
from dovetail.execute.native.driver import THREADED
from dovetail.execute.native.kernel_forms import Layout, is_in_order, known_layout
from dovetail.execute.native.llvm_function import Function
from dovetail.execute.native.machine import function_of
from dovetail.execute.native.rows import Address, Addresses, ReadyRow, Storages
from dovetail.ir.program import Node, Operand, Value
from dovetail.ops.arguments import arguments_of
from dovetail.torch_compat.dispatch import has_own_kernels

_NAME = "index_copy"
_TARGET = torch.ops.aten.index_copy_.default


@dataclass(frozen=True, slots=True)
class IndexCopyClaim(PlacedBase):
    """See `rows.RowClaim`. operands: the index and the source. numbers: slots of the row behind the pointers. places:
    among which the index chooses.
    """

    node: Node
    operands: tuple[Operand, ...]
    into: Value
    result: Value
    numbers: tuple[int, ...]
    places: int
    layout: None = None
    element: str = "i8"

    @property
    def checked(self) -> tuple[Value, ...]:
        """The index."""
        index = self.operands[0]
        assert isinstance(index, Value), "others are not claimed"
        return (index,)

    def is_proven(self) -> bool:
        """Whether it is torch's own operator that is claimed."""
        return has_own_kernels(_TARGET)


def index_copy_claim(node: Node) -> IndexCopyClaim | None:
    """The claim on a node of few elements, as far as descriptions say."""
    if node.target is not _TARGET or len(node.results()) != 1:
        return None
    arguments = arguments_of(node)
    into, index, source = (arguments[name] for name in ("self", "index", "source"))
    dim = arguments["dim"]
    if not (isinstance(into, Value) and isinstance(index, Value) and isinstance(source, Value)):
        return None
    metas = [value.tensor for value in (into, index, source)]
    layouts = [known_layout(meta) for meta in metas if meta.device.type == "cpu"]
    known = [layout for layout in layouts if layout is not None]
    if not isinstance(dim, int) or len(known) < len(metas) or metas[0].storage in {m.storage for m in metas[1:]}:
        return None
    (shape, _), (counts, _), (read, _) = known
    if not -len(shape) <= dim < len(shape) or 0 in read or prod(read) >= THREADED:
        return None
    dim %= len(shape)
    fits = counts == read[dim : dim + 1] and (*shape[:dim], read[dim], *shape[dim + 1 :]) == read
    is_plain = metas[1].dtype is torch.int64 and is_in_order(known[1]) and metas[0].dtype is metas[2].dtype
    if not (fits and is_plain):
        return None
    steps = [_steps(layout, dim) for layout in (known[0], known[2])]
    if steps[0] is None or steps[1] is None:
        return None
    elements = (prod(shape[dim + 1 :]), *steps[0], *steps[1])
    numbers = (prod(read[:dim]), read[dim], *(each * metas[0].dtype.itemsize for each in elements))
    return IndexCopyClaim(node, (index, source), into, node.results()[0], numbers, shape[dim])


def _steps(layout: Layout, dim: int) -> tuple[int, int] | None:
    """Elements from one block to the next, and from one place to the next; None where a part does not lie in one piece,
    or blocks do not follow each other evenly.
    """
    shape, stride = layout
    found = blocks_of(shape[:dim], stride[:dim], 0)
    is_one_piece = is_in_order((shape[dim + 1 :], stride[dim + 1 :]))
    return (found[1], stride[dim]) if found is not None and is_one_piece else None


def index_copy_row(claims: Sequence[IndexCopyClaim], _: Storages, addresses: Addresses) -> ReadyRow | None:
    """The row of a claim."""
    (claim,) = claims
    function = _function()
    if function is None:
        return None
    values = [claim.into, *(value for value in claim.operands if isinstance(value, Value))]
    pointers = tuple(addresses.get(value, Address(value)) for value in values)
    checks = (check_row(Bounds("index", claim.places), pointers[1], claim.numbers[1]),)
    return ReadyRow(function, 1, pointers, more=struct.pack("7q", *claim.numbers), checks=checks)


@cache
def _function() -> int | None:
    out = Function(f"define void @{_NAME}(ptr %row, i64 %from, i64 %to)")
    into, index, source = (out.slot("%row", at, "ptr") for at in (1, 2, 3))
    blocks, places, size, pitch, step, read_pitch, read_step = (out.slot("%row", at) for at in range(4, 11))
    with out.loop("0", blocks) as block, out.loop("0", places) as at:
        place = out.load("i64", out.element("i64", index, at), 8)
        to = out.element("i8", into, out.add(out.mul(block, pitch), out.mul(place, step)))
        read = out.element("i8", source, out.add(out.mul(block, read_pitch), out.mul(at, read_step)))
        out.line(f"call void @llvm.memcpy.p0.p0.i64(ptr {to}, ptr {read}, i64 {size}, i1 false)")
    return function_of("declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)\n" + out.finished(), _NAME, ())
