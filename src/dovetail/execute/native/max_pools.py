"""Largest elements of parts of images with channels last, as rows.

    slots: items, pointers (result, x), images, rows and columns of the result, channels, height and width of the image,
    kernel (two), strides (two), padding (two)

Items are shares of the work: rows of results of all images are divided in proportion. As in torch's kernel, the first
of equal elements is taken, and NaN is larger than any other.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
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
from dovetail.ops.max_pools import MAX_POOL

_NAME = "max_pool"


@dataclass(frozen=True, slots=True)
class MaxPoolClaim(OwnKernelBase):
    """See `rows.RowClaim`. sizes: as in the row."""

    node: Node
    operands: tuple[Operand, ...]
    result: Value
    sizes: tuple[int, ...]
    into: Value | None = None
    layout: None = None
    element: str = "i8"

    @property
    def pays_alone(self) -> bool:
        """By itself the node runs torch's kernel."""
        return True


def max_pool_claim(node: Node) -> MaxPoolClaim | None:
    """The claim on a node, as far as descriptions say."""
    if node.target is not MAX_POOL or node.kwargs or len(node.results()) != 1 or not multiplies_panels():
        return None
    (x, *lists, _), (result,) = node.args, node.results()
    if not isinstance(x, Value) or not is_image(x.tensor) or not is_image(result.tensor):
        return None
    numbers = [each for pair in lists if isinstance(pair, list | tuple) for each in pair if isinstance(each, int)]
    images, channels, rows, columns = known_sizes(result.tensor)
    sizes = (images, rows, columns, channels, *known_sizes(x.tensor)[2:], *numbers)
    return MaxPoolClaim(node, (x,), result, sizes) if len(numbers) == 2 * len(lists) else None


def max_pool_row(claims: Sequence[MaxPoolClaim], _: Storages, addresses: Addresses) -> ReadyRow | None:
    """The row of a claim."""
    (claim,) = claims
    values = (claim.result, *(value for value in claim.operands if isinstance(value, Value)))
    pointers = tuple(addresses.get(value, Address(value)) for value in values)
    items = prod((*claim.sizes[:4], *claim.sizes[6:8]))
    more = struct.pack(f"{len(claim.sizes)}q", *claim.sizes)
    return ReadyRow(_function(usual_tile().lanes), items, pointers, more=more)


@cache
def _function(lanes: int) -> int:
    found = function_of(max_pool_text(lanes), _NAME, ())
    assert found is not None, "it calls nothing"
    return found


def max_pool_text(lanes: int) -> str:
    """The module, for vectors of so many lanes."""
    out = Function(f"define void @{_NAME}(ptr %row, i64 %from, i64 %to) {ATTRIBUTES}")
    v, mask = f"<{lanes} x float>", f"<{lanes} x i1>"
    items, made, x = out.slot("%row", 0), out.slot("%row", 1, "ptr"), out.slot("%row", 2, "ptr")
    images, rows, columns, channels, high, wide, *window = (out.slot("%row", at) for at in range(3, 15))
    tall, broad, down, across, above, before = window
    lines = out.mul(images, rows)
    first, end = (
        out.set(f"sdiv i64 {out.add(out.mul(bound, lines), out.set(f'sub i64 {items}, 1'))}, {items}")
        for bound in ("%from", "%to")
    )
    numbers = ", ".join(f"i64 {n}" for n in range(lanes))
    with out.loop(first, end) as line:
        image, row = (out.set(f"{what} i64 {line}, {rows}") for what in ("sdiv", "srem"))
        y, y_end = _inside(out, (row, down, above), tall, high)
        start, to = out.mul(image, high), out.mul(line, columns)
        with out.loop("0", columns) as column, out.loop("0", channels, str(lanes)) as c:
            left, right = _inside(out, (column, across, before), broad, wide)
            few = out.spread("i64", out.set(f"sub i64 {channels}, {c}"), lanes)
            there = out.set(f"icmp slt <{lanes} x i64> <{numbers}>, {few}")
            most = out.variable(v, "splat (float 0xFFF0000000000000)", 64)
            with out.loop(y, y_end) as y_at, out.loop(left, right) as x_at:
                pixel = out.add(out.mul(out.add(start, y_at), wide), x_at)
                at = out.element("float", x, out.add(out.mul(pixel, channels), c))
                arguments = f"ptr {at}, i32 4, {mask} {there}, {v} zeroinitializer"
                given = out.set(f"call {v} @llvm.masked.load.v{lanes}f32.p0({arguments})")
                former = out.load(v, most, 64)
                is_more = out.set(f"fcmp ogt {v} {given}, {former}")
                is_nan = out.set(f"fcmp uno {v} {given}, {given}")
                taken = out.set(f"or {mask} {is_more}, {is_nan}")
                out.line(
                    f"store {v} {out.set(f'select {mask} {taken}, {v} {given}, {v} {former}')}, ptr {most}, align 64"
                )
            at = out.element("float", made, out.add(out.mul(out.add(to, column), channels), c))
            found = out.load(v, most, 64)
            out.line(f"call void @llvm.masked.store.v{lanes}f32.p0({v} {found}, ptr {at}, i32 4, {mask} {there})")
    return (
        f"declare {v} @llvm.masked.load.v{lanes}f32.p0(ptr, i32, {mask}, {v})\n"
        f"declare void @llvm.masked.store.v{lanes}f32.p0({v}, ptr, i32, {mask})\n"
        "declare i64 @llvm.smin.i64(i64, i64)\ndeclare i64 @llvm.smax.i64(i64, i64)\n"
    ) + out.finished()


def _inside(out: Function, place: tuple[str, str, str], size: str, all_: str) -> tuple[str, str]:
    """The first line of an image that a part reads, and the one behind the last. place: the number of the part, and how
    far the next one is, and padding.
    """
    number, step, padding = place
    first = out.set(f"sub i64 {out.mul(number, step)}, {padding}")
    end = out.set(f"call i64 @llvm.smin.i64(i64 {out.add(first, size)}, i64 {all_})")
    return out.set(f"call i64 @llvm.smax.i64(i64 {first}, i64 0)"), end
