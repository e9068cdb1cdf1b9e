"""Largest elements of parts of images with channels last, as rows.

    slots: items, pointers (result, x), images, rows and columns of the result, channels, height and width of the image,
    kernel (two), strides (two), padding (two)

Items are shares of the work: rows of results of all images are divided in proportion. As in torch's kernel, the first
of equal elements is taken, and NaN is larger than any other.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from math import prod

from dovetail.execute.native.channel_vectors import ChannelVectors, row_function
from dovetail.execute.native.claim_base import ImageClaim
from dovetail.execute.native.convolution_rows import is_image
from dovetail.execute.native.driver import LOOSE
from dovetail.execute.native.llvm_function import Function
from dovetail.execute.native.panel_rows import known_sizes
from dovetail.execute.native.panels import multiplies_panels
from dovetail.execute.native.rows import Address, Addresses, ReadyRow, Storages
from dovetail.execute.native.tile_text import ATTRIBUTES
from dovetail.ir.program import Node, Value
from dovetail.ops.max_pools import MAX_POOL

_NAME = "max_pool"


class MaxPoolClaim(ImageClaim):
    """See `rows.RowClaim`."""

    __slots__ = ()

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
    return ReadyRow(row_function(_NAME, max_pool_text), items, pointers, more=more, marks=LOOSE)


def max_pool_text(lanes: int) -> str:
    """The module, for vectors of so many lanes."""
    out = Function(f"define void @{_NAME}(ptr %row, i64 %from, i64 %to) {ATTRIBUTES}")
    vectors = ChannelVectors(out, lanes)
    v, mask = vectors.kind, vectors.mask_kind
    items, made, x = out.slot("%row", 0), out.slot("%row", 1, "ptr"), out.slot("%row", 2, "ptr")
    images, rows, columns, channels, high, wide, *window = (out.slot("%row", at) for at in range(3, 15))
    tall, broad, down, across, above, before = window
    first, end = out.share(items, out.mul(images, rows))
    with out.loop(first, end) as line:
        image, row = (out.set(f"{what} i64 {line}, {rows}") for what in ("sdiv", "srem"))
        y, y_end = _inside(out, (row, down, above), tall, high)
        start, to = out.mul(image, high), out.mul(line, columns)
        with out.loop("0", columns) as column, out.loop("0", channels, str(lanes)) as c:
            left, right = _inside(out, (column, across, before), broad, wide)
            there = vectors.mask(out.set(f"sub i64 {channels}, {c}"))
            most = out.variable(v, "splat (float 0xFFF0000000000000)", 64)
            with out.loop(y, y_end) as y_at, out.loop(left, right) as x_at:
                pixel = out.add(out.mul(out.add(start, y_at), wide), x_at)
                given = vectors.load(out.element("float", x, out.add(out.mul(pixel, channels), c)), there)
                former = out.load(v, most, 64)
                is_more = out.set(f"fcmp ogt {v} {given}, {former}")
                is_nan = out.set(f"fcmp uno {v} {given}, {given}")
                taken = out.set(f"or {mask} {is_more}, {is_nan}")
                out.line(
                    f"store {v} {out.set(f'select {mask} {taken}, {v} {given}, {v} {former}')}, ptr {most}, align 64"
                )
            at = out.element("float", made, out.add(out.mul(out.add(to, column), channels), c))
            vectors.store(out.load(v, most, 64), at, there)
    limits = "declare i64 @llvm.smin.i64(i64, i64)\ndeclare i64 @llvm.smax.i64(i64, i64)\n"
    return vectors.declared + limits + out.finished()


def _inside(out: Function, place: tuple[str, str, str], size: str, all_: str) -> tuple[str, str]:
    """The first line of an image that a part reads, and the one behind the last. place: the number of the part, and how
    far the next one is, and padding.
    """
    number, step, padding = place
    first = out.set(f"sub i64 {out.mul(number, step)}, {padding}")
    end = out.set(f"call i64 @llvm.smin.i64(i64 {out.add(first, size)}, i64 {all_})")
    return out.set(f"call i64 @llvm.smax.i64(i64 {first}, i64 0)"), end
