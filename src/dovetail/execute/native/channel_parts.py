"""Channels of images that are put side by side, channels last, as rows.

    slots: items, pointers (result, a part), pixels, channels of the result and of the part, the part's first channel

Each part has a row. Items are shares of the work: pixels are divided in proportion.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from math import prod

from dovetail.execute.native.channel_vectors import ChannelVectors, row_function
from dovetail.execute.native.claim_base import ImageClaim
from dovetail.execute.native.convolution_rows import is_image
from dovetail.execute.native.llvm_function import Function
from dovetail.execute.native.panel_rows import known_sizes
from dovetail.execute.native.panels import multiplies_panels
from dovetail.execute.native.rows import Address, Addresses, ReadyRow, Storages
from dovetail.execute.native.tile_text import ATTRIBUTES
from dovetail.ir.program import Node, Value
from dovetail.ops.channel_parts import CAT_CHANNELS

_NAME = "channel_parts"


class ChannelPartsClaim(ImageClaim):
    """See `rows.RowClaim`. operands: the parts."""

    __slots__ = ()

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
    pixels, function, rows = (
        images * prod(size),
        row_function(_NAME, channel_parts_text),
        list[ReadyRow](),
    )
    for part, width, first in zip(parts, widths, accumulate(widths, initial=0), strict=False):
        pointers = tuple(addresses.get(value, Address(value)) for value in (claim.result, part))
        more = struct.pack("4q", pixels, channels, width, first)
        rows.append(ReadyRow(function, pixels * width, pointers, more=more))
    return replace(rows[-1], before=tuple(rows[:-1]))


def channel_parts_text(lanes: int) -> str:
    """The module, for vectors of so many lanes."""
    out = Function(f"define void @{_NAME}(ptr %row, i64 %from, i64 %to) {ATTRIBUTES}")
    vectors = ChannelVectors(out, lanes)
    items, made, part = out.slot("%row", 0), out.slot("%row", 1, "ptr"), out.slot("%row", 2, "ptr")
    pixels, channels, width, place = (out.slot("%row", at) for at in range(3, 7))
    first, end = out.share(items, pixels)
    start = out.element("float", made, place)
    with out.loop(first, end) as pixel, out.loop("0", width, str(lanes)) as c:
        there = vectors.mask(out.set(f"sub i64 {width}, {c}"))
        given = out.element("float", part, out.add(out.mul(pixel, width), c))
        to = out.element("float", start, out.add(out.mul(pixel, channels), c))
        vectors.store(vectors.load(given, there), to, there)
    return vectors.declared + out.finished()
