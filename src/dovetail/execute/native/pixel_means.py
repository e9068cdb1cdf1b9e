"""Means of the channels of images with channels last, over all pixels, as rows.

    slots: items, pointers (result, x), images, rows, columns, channels, the number of pixels (`float`)

Items are shares of the work: vectors of channels of all images are divided in proportion. Pixels of a row are added
first, and then rows, so that rounding grows with the sum of both. Where there are few vectors and many pixels, rows are
added up by a row of their own, whose items are vectors of all rows, for threads to share: the same sums.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace
from math import prod

from dovetail.execute.native.call_memory import around
from dovetail.execute.native.channel_vectors import ChannelVectors, row_function
from dovetail.execute.native.claim_base import ImageClaim
from dovetail.execute.native.convolution_rows import is_image
from dovetail.execute.native.llvm_function import Function
from dovetail.execute.native.panel_rows import is_in_order, known_sizes
from dovetail.execute.native.panels import multiplies_panels, usual_tile
from dovetail.execute.native.rows import Address, Addresses, ReadyRow, Storages
from dovetail.execute.native.tile_text import ATTRIBUTES
from dovetail.ir.program import Node, Value
from dovetail.ops.panel_convolutions import PIXEL_MEAN

_NAME = "pixel_mean"
_VECTORS = 4  # whose sums are in registers
_FEW, _MANY = 8, 1 << 16  # jobs that threads cannot share well; elements from which on a row more pays
_ITEMSIZE = 4  # bytes of a `float`


class PixelMeanClaim(ImageClaim):
    """See `rows.RowClaim`. sizes: images, rows, columns, channels."""

    __slots__ = ()

    @property
    def has_two_rows(self) -> bool:
        """Whether the pixels of rows are added up by a row of their own."""
        images, rows, _, channels = self.sizes
        vectors = images * -(-channels // (_VECTORS * usual_tile().lanes))
        return rows > 1 and vectors < _FEW and prod(self.sizes) >= _MANY

    @property
    def own_bytes(self) -> int:
        """What the sums of rows take."""
        images, rows, _, channels = self.sizes
        return images * rows * channels * _ITEMSIZE if self.has_two_rows else 0


def pixel_mean_claim(node: Node) -> PixelMeanClaim | None:
    """The claim on a node, as far as descriptions say."""
    if node.target is not PIXEL_MEAN or len(node.results()) != 1 or not multiplies_panels():
        return None
    x, (result,) = node.args[0], node.results()
    if not isinstance(x, Value) or not x.is_tensor or not is_image(x.tensor):
        return None
    images, channels, rows, columns = known_sizes(x.tensor)
    made = result.tensor
    is_flat = made.numel() == images * channels and known_sizes(made)[:2] == (images, channels)
    if not is_flat or not (is_in_order(made) or (images, made.stride[1]) == (1, 1)):
        return None
    return PixelMeanClaim(node, (x,), result, (images, rows, columns, channels))


def pixel_mean_row(claims: Sequence[PixelMeanClaim], _: Storages, addresses: Addresses) -> ReadyRow | None:
    """The row of a claim."""
    (claim,) = claims
    images, rows, columns, channels = claim.sizes
    values = (claim.result, *(value for value in claim.operands if isinstance(value, Value)))
    made, x = (addresses.get(value, Address(value)) for value in values)
    if not claim.has_two_rows:
        return _row(made, x, claim.sizes, rows * columns)
    value, take, let_go = around(f"{claim.result.name}_rows", claim.own_bytes)
    first = _row(Address(value), x, (images * rows, 1, columns, channels), 1)
    last = _row(made, Address(value), (images, rows, 1, channels), rows * columns)
    return replace(last, before=(take, first), after=(let_go,))


def _row(made: Address, x: Address, sizes: Sequence[int], pixels: int) -> ReadyRow:
    """A row: sums over rows and columns of some images, divided by a number of pixels."""
    more = struct.pack("4qf4x", *sizes, float(pixels))
    return ReadyRow(row_function(_NAME, pixel_mean_text), prod(sizes), (made, x), more=more)


def pixel_mean_text(lanes: int) -> str:
    """The module, for vectors of so many lanes."""
    out = Function(f"define void @{_NAME}(ptr %row, i64 %from, i64 %to) {ATTRIBUTES}")
    vectors, wide = ChannelVectors(out, lanes), lanes * _VECTORS
    v = vectors.kind
    items, made, x = out.slot("%row", 0), out.slot("%row", 1, "ptr"), out.slot("%row", 2, "ptr")
    images, rows, columns, channels = (out.slot("%row", at) for at in range(3, 7))
    divisor = out.slot("%row", 7, "float")

    groups = out.set(f"sdiv i64 {out.add(channels, str(wide - 1))}, {wide}")
    jobs, by = out.mul(images, groups), out.spread("float", divisor, lanes)
    first, end = out.share(items, jobs)
    line = out.mul(columns, channels)
    with out.loop(first, end) as job:
        image, group = (out.set(f"{what} i64 {job}, {groups}") for what in ("sdiv", "srem"))
        channel = out.mul(group, str(wide))
        start = out.element("float", x, out.add(out.mul(out.mul(image, rows), line), channel))
        to = out.element("float", made, out.add(out.mul(image, channels), channel))
        left = out.set(f"sub i64 {channels}, {channel}")
        masks = [vectors.mask(out.set(f"sub i64 {left}, {vector * lanes}")) for vector in range(_VECTORS)]
        sums = [out.variable(v, "zeroinitializer", 64) for _ in masks]
        with out.loop("0", rows) as y:
            place = out.mul(y, line)
            parts = [out.variable(v, "zeroinitializer", 64) for _ in masks]
            with out.loop("0", columns) as column:
                pixel = out.add(place, out.mul(column, channels))
                for vector, part in enumerate(parts):
                    at = out.element("float", start, out.add(pixel, str(vector * lanes)))
                    more = out.set(f"fadd {v} {out.load(v, part, 64)}, {vectors.load(at, masks[vector])}")
                    out.line(f"store {v} {more}, ptr {part}, align 64")
            for whole, part in zip(sums, parts, strict=True):
                more = out.set(f"fadd {v} {out.load(v, whole, 64)}, {out.load(v, part, 64)}")
                out.line(f"store {v} {more}, ptr {whole}, align 64")
        for vector, whole in enumerate(sums):
            mean = out.set(f"fdiv {v} {out.load(v, whole, 64)}, {by}")
            vectors.store(mean, out.element("float", to, str(vector * lanes)), masks[vector])
    return vectors.declared + out.finished()
