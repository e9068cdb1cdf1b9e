"""Sums over the first dimensions, where results may differ by rounding: gradients of biases, say.

Rows are added piece by piece of a few thousand bytes, some rows to a sum of their own, and these sums in order: the
same for any number of threads, of which each has columns.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

import torch

from dovetail.execute.native.claim_base import PlacedBase
from dovetail.execute.native.llvm_function import Function
from dovetail.execute.native.machine import driver, function_of
from dovetail.execute.native.probes import Refused
from dovetail.execute.native.rows import Address, Addresses, ReadyRow, Storages, table_row
from dovetail.execute.native.scratch import scratch
from dovetail.execute.native.sums import as_matrix
from dovetail.execute.native.tile_text import ATTRIBUTES
from dovetail.execute.native.trials import answered
from dovetail.ir.program import Node, Operand, Value
from dovetail.ops.arguments import arguments_of
from dovetail.torch_compat.dispatch import Overload

_SUM: Overload = torch.ops.aten.sum.dim_IntList
_PIECE = 1024  # columns of which sums are kept at once
_ROWS = 32  # that are added by themselves
_NAME = "column_sums"
_NEAR = 1e-6
_SIZES = ((2, 3), (70, 40), (33, _PIECE + 9))


@dataclass(frozen=True, slots=True)
class ColumnSumQuestion:
    """What is asked: there is one kernel."""

    target: Overload


@dataclass(frozen=True, slots=True)
class ColumnSumClaim(PlacedBase):
    """See `rows.RowClaim`. sizes: rows and columns of the operand as a matrix."""

    node: Node
    operands: tuple[Operand, ...]
    result: Value
    sizes: tuple[int, int]
    into: None = None
    layout: None = None
    element: str = "float"

    def is_proven(self) -> bool:
        """Whether results are near those of torch."""
        return answered(ColumnSumQuestion(_SUM), _SUM, lambda: all(map(_tried, _SIZES)))


def column_sum_claim(node: Node) -> ColumnSumClaim | None:
    """The claim on a node, as far as descriptions say."""
    if node.target != _SUM or len(node.results()) != 1:
        return None
    arguments, result = arguments_of(node), node.results()[0]
    operand, dims = arguments.get("self"), arguments.get("dim")
    values = [each for each in (operand, result) if isinstance(each, Value) and each.is_tensor]
    metas = [value.tensor for value in values]
    is_plain = all(m.dtype is torch.float32 and m.device.type == "cpu" and m.is_contiguous() for m in metas)
    if len(metas) < 2 or not is_plain:
        return None
    shape = [size for size in metas[0].shape if isinstance(size, int)]
    found = as_matrix(shape, dims) if len(shape) == len(metas[0].shape) else None
    is_first, rows, columns = found or (False, 0, 0)
    is_wide = is_first and columns >= _ROWS and rows > 1
    return ColumnSumClaim(node, (operand,), result, (rows, columns)) if is_wide else None


def column_sum_row(claims: Sequence[ColumnSumClaim], _: Storages, addresses: Addresses) -> ReadyRow | None:
    """The row of a claim."""
    (claim,) = claims
    values: Any = (claim.result, *claim.operands)
    pointers = tuple(addresses.get(value, Address(value)) for value in values)
    return ReadyRow(_function(), prod(claim.sizes), pointers, more=struct.pack("2q", *claim.sizes))


@cache
def _function() -> int:
    found = function_of(_text(), _NAME, ())
    assert found is not None, "it calls nothing"
    return found


def _text() -> str:
    """slots: items, pointers (result, operand), rows, columns; it adds the columns that begin among the items."""
    out = Function(f"define void @{_NAME}(ptr %row, i64 %from, i64 %to)")
    rows, columns = out.slot("%row", 3), out.slot("%row", 4)
    edges = [f"i64 {out.parts(edge, rows)}" for edge in ("%from", "%to")]
    pointers = [f"ptr {out.slot('%row', at, 'ptr')}" for at in (1, 2)]
    out.line(f"call void @{_NAME}_body({', '.join([*pointers, f'i64 {rows}', f'i64 {columns}', *edges])})")
    return "\n".join([out.finished(), _body(), "declare i64 @llvm.smin.i64(i64, i64)\n"])


def _body() -> str:
    given = "ptr noalias %made, ptr noalias %given, i64 %rows, i64 %columns, i64 %from, i64 %to"
    out = Function(f"define internal void @{_NAME}_body({given}) noinline {ATTRIBUTES}")
    sums, parts = (out.memory(f"[{_PIECE} x float]", 64) for _ in range(2))
    with out.loop("%from", "%to", str(_PIECE)) as piece:
        left = out.set(f"sub i64 %to, {piece}")
        count = out.set(f"call i64 @llvm.smin.i64(i64 {left}, i64 {_PIECE})")
        _each(out, count, sums, lambda _: "0.0")  # torch gives no negative zero
        with out.loop("0", "%rows", str(_ROWS)) as first:
            _each(out, count, parts, lambda _: "-0.0")
            behind = out.set(f"call i64 @llvm.smin.i64(i64 {out.add(first, str(_ROWS))}, i64 %rows)")
            with out.loop(first, behind) as row:
                start = out.element("float", "%given", out.add(out.mul(row, "%columns"), piece))
                _each(out, count, parts, lambda at, start=start: _added(out, at, parts, start))
            _each(out, count, sums, lambda at: _added(out, at, sums, parts))
        made = out.element("float", "%made", piece)
        _each(out, count, made, lambda at: out.load("float", out.element("float", sums, at)))
    return out.finished()


def _added(out: Function, at: str, a: str, b: str) -> str:
    left, right = (out.load("float", out.element("float", each, at)) for each in (a, b))
    return out.set(f"fadd float {left}, {right}")


def _each(out: Function, count: str, into: str, value: Any) -> None:
    """Store a value for each column of a piece."""
    with out.loop("0", count) as at:
        found = value(at)
        out.line(f"store float {found}, ptr {out.element('float', into, at)}, align 4")


def _tried(sizes: tuple[int, int]) -> bool:
    given = scratch(sizes, torch.float32).normal_(generator=torch.Generator().manual_seed(sizes[0]))
    made = scratch(sizes[1:], torch.float32).fill_(7.0)
    pointers = [made.data_ptr(), given.data_ptr()]
    table = table_row(_function(), prod(sizes), pointers, (), struct.pack("2q", *sizes))
    if driver()(table, 1, torch.get_num_threads(), 0):
        raise Refused
    return bool(((made - given.double().sum(0)).abs() <= _NEAR * given.abs().sum(0)).all())
