"""Channels of images that are put side by side, channels last, as rows.

    slots: items, pointers (result, a part), pixels, channels of the result and of the part, the part's first channel

Each part has a row. Items are shares of the work: pixels are divided in proportion.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate
from math import prod

from dovetail.execute.native.claim_base import OwnKernelBase
from dovetail.execute.native.convolution_rows import is_image
from dovetail.execute.native.llvm_function import Function
from dovetail.execute.native.machine import function_of
from dovetail.execute.native.panel_rows import known_sizes
from dovetail.execute.native.panels import multiplies_panels, usual_tile
from dovetail.execute.native.rows import Address, Addresses, ReadyRow, Storages
from dovetail.execute.native.tile_text import ATTRIBUTES
from dovetail.ir.program import Node, Operand, Value
from dovetail.ops.channel_parts import CAT_CHANNELS

_NAME = "channel_parts"


@dataclass(frozen=True, slots=True)
class ChannelPartsClaim(OwnKernelBase):
    """See `rows.RowClaim`. operands: the parts."""

    node: Node
    operands: tuple[Operand, ...]
    result: Value
    into: Value | None = None
    layout: None = None
    element: str = "i8"

    @property
    def pays_alone(self) -> bool:
        """By itself the node runs torch's kernel."""
        return True


def channel_parts_claim(node: Node) -> ChannelPartsClaim | None:
    """The claim on a node, as far as descriptions say."""
    if node.target is not CAT_CHANNELS or node.kwargs or len(node.results()) != 1 or not multiplies_panels():
        return None
    parts, (result,) = node.args[0], node.results()
    values = [each for each in parts if isinstance(each, Value)] if isinstance(parts, list | tuple) else []
    if not values or not all(value.is_tensor and is_image(value.tensor) for value in (*values, result)):
        return None
    return ChannelPartsClaim(node, tuple(values), result)


def channel_parts_row(claims: Sequence[ChannelPartsClaim], _: Storages, addresses: Addresses) -> ReadyRow | None:
    """The row of the last part, with those of others before it."""
    (claim,) = claims
    parts = [each for each in claim.operands if isinstance(each, Value)]
    widths = [known_sizes(part.tensor)[1] for part in parts]
    images, channels, *size = known_sizes(claim.result.tensor)
    pixels, function, rows = images * prod(size), _function(usual_tile().lanes), list[ReadyRow]()
    for part, width, first in zip(parts, widths, accumulate(widths, initial=0), strict=False):
        pointers = tuple(addresses.get(value, Address(value)) for value in (claim.result, part))
        more = struct.pack("4q", pixels, channels, width, first)
        rows.append(ReadyRow(function, pixels * width, pointers, more=more))
    return replace(rows[-1], before=tuple(rows[:-1]))


@cache
def _function(lanes: int) -> int:
    found = function_of(channel_parts_text(lanes), _NAME, ())
    assert found is not None, "it calls nothing"
    return found


def channel_parts_text(lanes: int) -> str:
    """The module, for vectors of so many lanes."""
    out = Function(f"define void @{_NAME}(ptr %row, i64 %from, i64 %to) {ATTRIBUTES}")
    v, mask = f"<{lanes} x float>", f"<{lanes} x i1>"
    items, made, part = out.slot("%row", 0), out.slot("%row", 1, "ptr"), out.slot("%row", 2, "ptr")
    pixels, channels, width, place = (out.slot("%row", at) for at in range(3, 7))
    first, end = (
        out.set(f"sdiv i64 {out.add(out.mul(bound, pixels), out.set(f'sub i64 {items}, 1'))}, {items}")
        for bound in ("%from", "%to")
    )
    start = out.element("float", made, place)
    numbers = ", ".join(f"i64 {n}" for n in range(lanes))
    with out.loop(first, end) as pixel, out.loop("0", width, str(lanes)) as c:
        few = out.spread("i64", out.set(f"sub i64 {width}, {c}"), lanes)
        there = out.set(f"icmp slt <{lanes} x i64> <{numbers}>, {few}")
        given = out.element("float", part, out.add(out.mul(pixel, width), c))
        to = out.element("float", start, out.add(out.mul(pixel, channels), c))
        arguments = f"ptr {given}, i32 4, {mask} {there}, {v} zeroinitializer"
        found = out.set(f"call {v} @llvm.masked.load.v{lanes}f32.p0({arguments})")
        out.line(f"call void @llvm.masked.store.v{lanes}f32.p0({v} {found}, ptr {to}, i32 4, {mask} {there})")
    return (
        f"declare {v} @llvm.masked.load.v{lanes}f32.p0(ptr, i32, {mask}, {v})\n"
        f"declare void @llvm.masked.store.v{lanes}f32.p0({v}, ptr, i32, {mask})\n"
    ) + out.finished()
