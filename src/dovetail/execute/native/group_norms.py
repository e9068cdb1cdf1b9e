"""Groups of channels of images with channels last, normalised, as rows, and calls of nodes one by one.

    slots: items, pointers (result, x, weight, bias), images, rows, columns, channels, channels of a group, channels of
    a block, whether there is a weight, and a bias, what is added to variances (`float`)

Blocks are whole groups, and whole vectors if these divide the channels so. Items are shares of the work: blocks of all
images are divided in proportion. Means are found first, then variances from differences to them; of each, pixels of a
row are added first, and then rows.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from typing import cast

import torch

from dovetail.execute.native.channel_vectors import ChannelVectors, row_function
from dovetail.execute.native.claim_base import ImageClaim
from dovetail.execute.native.convolution_rows import is_image
from dovetail.execute.native.driver import LOOSE, THREADED
from dovetail.execute.native.llvm_function import Function
from dovetail.execute.native.machine import driver
from dovetail.execute.native.panel_rows import is_in_order, known_sizes
from dovetail.execute.native.panels import multiplies_panels, usual_tile
from dovetail.execute.native.rows import Address, Addresses, ReadyRow, Storages, table_row
from dovetail.execute.native.tile_text import ATTRIBUTES
from dovetail.ir.program import Node, Value
from dovetail.ops.group_norms import GROUP_NORM
from dovetail.torch_compat.fakes import is_fake
from dovetail.torch_compat.native_symbols import no_mode_watches

_NAME = "group_norm"
_MOST = 4096  # channels, of which sums are on the stack
_IMAGE = 4
_Call = Callable[..., torch.Tensor]


class GroupNormClaim(ImageClaim):
    """See `rows.RowClaim`. sizes: images, rows, columns, channels."""

    __slots__ = ()


def group_norm_claim(node: Node) -> GroupNormClaim | None:
    """The claim on a node, as far as descriptions say."""
    if node.target is not GROUP_NORM or node.kwargs or len(node.results()) != 1 or not multiplies_panels():
        return None
    (x, *affine, groups, _), (result,) = node.args, node.results()
    given = [each for each in affine if each is not None]
    values = [each for each in given if isinstance(each, Value) and is_in_order(each.tensor)]
    if not isinstance(x, Value) or not is_image(x.tensor) or not is_image(result.tensor) or len(values) < len(given):
        return None
    images, channels, rows, columns = known_sizes(x.tensor)
    if not _fits(channels, groups) or any(known_sizes(value.tensor) != (channels,) for value in values):
        return None
    return GroupNormClaim(node, (x, *values), result, (images, rows, columns, channels))


def group_norm_row(claims: Sequence[GroupNormClaim], _: Storages, addresses: Addresses) -> ReadyRow | None:
    """The row of a claim."""
    (claim,) = claims
    x, weight, bias, groups, eps = claim.node.args
    values = [claim.result, *(each if isinstance(each, Value) else claim.result for each in (x, weight, bias))]
    pointers = tuple(addresses.get(value, Address(value)) for value in values)
    assert isinstance(groups, int), "it was asked for"
    assert isinstance(eps, float), "it was asked for"
    more = _more(claim.sizes, groups, eps, (weight is not None, bias is not None))
    return ReadyRow(row_function(_NAME, group_norm_text), math.prod(claim.sizes), pointers, more=more, marks=LOOSE)


def group_norm_call() -> _Call:
    """What is called in the primitive's place, by one node; the same results, but for rounding."""
    drive, function, plain = driver(), row_function(_NAME, group_norm_text), cast(_Call, GROUP_NORM.run)

    def call(
        x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, groups: int, eps: float
    ) -> torch.Tensor:
        given = [each for each in (weight, bias) if each is not None]
        is_usual = x.dim() == _IMAGE and x.numel() > 0 and x.is_contiguous(memory_format=torch.channels_last)
        is_usual = is_usual and all(not is_fake(each) and not each.is_neg() for each in (x, *given))
        is_usual = is_usual and all(each.dtype is torch.float32 and each.device.type == "cpu" for each in (x, *given))
        fits = is_usual and all(each.is_contiguous() and each.shape == x.shape[1:2] for each in given)
        if not fits or not _fits(x.shape[1], groups) or not no_mode_watches():
            return plain(x, weight, bias, groups, eps)
        made = torch.empty_like(x, memory_format=torch.channels_last)
        images, channels, rows, columns = x.shape
        has = weight is not None, bias is not None
        pointers = [(made if each is None else each).data_ptr() for each in (made, x, weight, bias)]
        more = _more((images, rows, columns, channels), groups, eps, has)
        table = table_row(function, x.numel(), pointers, (), more, LOOSE)
        if drive(table, 1, torch.get_num_threads() if x.numel() >= THREADED else 1, 0):
            return plain(x, weight, bias, groups, eps)
        return made

    return call


def _fits(channels: int, groups: object) -> bool:
    return isinstance(groups, int) and groups > 0 and channels % groups == 0 and channels <= _MOST


def _more(sizes: Sequence[int], groups: int, eps: float, has: tuple[bool, bool]) -> bytes:
    channels = sizes[-1]
    block = math.lcm(channels // groups, usual_tile().lanes)
    block = channels if channels % block else block
    return struct.pack("8qf4x", *sizes, channels // groups, block, *has, eps)


def group_norm_text(lanes: int) -> str:
    """The module, for vectors of so many lanes."""
    out = Function(f"define void @{_NAME}(ptr %row, i64 %from, i64 %to) {ATTRIBUTES}")
    of = _Block(out, lanes)
    first, end = out.share(out.slot("%row", 0), out.mul(of.images, of.blocks))
    with out.loop(first, end) as job:
        start, to, channel = of.place(job)
        of.add_up(start, of.means, is_spread=False)
        of.add_up(start, of.scales, is_spread=True)
        of.take_affine(channel)
        of.write(start, to)
    return of.declared + out.finished()


class _Block:
    """Lines for a block of channels of an image."""

    def __init__(self, out: Function, lanes: int) -> None:
        self._out, self._lanes, self._vectors = out, lanes, ChannelVectors(out, lanes)
        self._made, self._x, self._weight, self._bias = (out.slot("%row", at, "ptr") for at in range(1, 5))
        self.images, self._rows, self._columns, self._channels, self._each, self._block = (
            out.slot("%row", at) for at in range(5, 11)
        )
        self._has_weight, self._has_bias = (out.set(f"icmp ne i64 {out.slot('%row', at)}, 0") for at in (11, 12))
        self._eps = out.slot("%row", 13, "float")
        whole = out.mul(out.parts(self._block, str(lanes)), str(lanes))
        self._sums, self.means, self.scales, self._added = (
            out.set(f"alloca float, i64 {whole}, align 64") for _ in range(4)
        )
        pixels = out.mul(self._rows, self._columns)
        self._count = out.set(f"sitofp i64 {out.mul(self._each, pixels)} to float")
        self._line = out.mul(self._columns, self._channels)
        self.blocks = out.set(f"sdiv i64 {self._channels}, {self._block}")

    @property
    def declared(self) -> str:
        """Declarations of what is called."""
        v = self._vectors.kind
        fma = f"declare {v} @llvm.fma.v{self._lanes}f32({v}, {v}, {v})\n"
        return f"{self._vectors.declared}{fma}declare float @llvm.sqrt.f32(float)\n"

    def place(self, job: str) -> tuple[str, str, str]:
        """Where a block begins in x and in the result, and its first channel."""
        out = self._out
        image, which = (out.set(f"{what} i64 {job}, {self.blocks}") for what in ("sdiv", "srem"))
        channel = out.mul(which, self._block)
        place = out.add(out.mul(out.mul(image, self._rows), self._line), channel)
        return out.element("float", self._x, place), out.element("float", self._made, place), channel

    def add_up(self, start: str, into: str, *, is_spread: bool) -> None:
        """Means of groups, or one divided by their standard deviations, for each channel."""
        out, v = self._out, self._vectors.kind
        with out.loop("0", self._block, str(self._lanes)) as j:
            total = out.variable(v, "zeroinitializer", 64)
            mean = out.load(v, out.element("float", self.means, j)) if is_spread else ""
            mask = self._mask(j)
            with out.loop("0", self._rows) as y:
                part = out.variable(v, "zeroinitializer", 64)
                with out.loop("0", self._columns) as column:
                    number = self._vectors.load(out.element("float", start, self._pixel(y, column, j)), mask)
                    if is_spread:
                        apart = out.set(f"fsub {v} {number}, {mean}")
                        number = out.set(f"fmul {v} {apart}, {apart}")
                    self._increase(part, number)
                self._increase(total, out.load(v, part, 64))
            out.line(f"store {v} {out.load(v, total, 64)}, ptr {out.element('float', self._sums, j)}, align 4")
        with out.loop("0", self._block, self._each) as group:
            found = out.set(f"fdiv float {_sum(out, self._sums, group, self._each)}, {self._count}")
            if is_spread:
                root = out.set(f"call float @llvm.sqrt.f32(float {out.set(f'fadd float {found}, {self._eps}')})")
                found = out.set(f"fdiv float 1.0, {root}")
            with out.loop(group, out.add(group, self._each)) as c:
                out.line(f"store float {found}, ptr {out.element('float', into, c)}, align 4")

    def take_affine(self, channel: str) -> None:
        """Let scales have weights, and find what is added."""
        out = self._out
        with out.loop("0", self._block) as c:
            place, scale = out.add(channel, c), out.element("float", self.scales, c)
            added = out.element("float", self._added, c)
            out.line(f"store float 0.0, ptr {added}, align 4")
            with out.when(self._has_weight):
                factor = out.load("float", out.element("float", self._weight, place))
                both = out.set(f"fmul float {out.load('float', scale)}, {factor}")
                out.line(f"store float {both}, ptr {scale}, align 4")
            with out.when(self._has_bias):
                more = out.load("float", out.element("float", self._bias, place))
                out.line(f"store float {more}, ptr {added}, align 4")

    def write(self, start: str, to: str) -> None:
        """The results."""
        out, v = self._out, self._vectors.kind
        with out.loop("0", self._block, str(self._lanes)) as j:
            mask = self._mask(j)
            mean, scale, more = (
                out.load(v, out.element("float", each, j)) for each in (self.means, self.scales, self._added)
            )
            with out.loop("0", self._rows) as y, out.loop("0", self._columns) as column:
                at = self._pixel(y, column, j)
                number = self._vectors.load(out.element("float", start, at), mask)
                apart = out.set(f"fsub {v} {number}, {mean}")
                made = out.set(f"call {v} @llvm.fma.v{self._lanes}f32({v} {apart}, {v} {scale}, {v} {more})")
                self._vectors.store(made, out.element("float", to, at), mask)

    def _mask(self, j: str) -> str:
        return self._vectors.mask(self._out.set(f"sub i64 {self._block}, {j}"))

    def _pixel(self, y: str, column: str, j: str) -> str:
        """Elements from the first channel of a block to a vector of it in a pixel."""
        out = self._out
        return out.add(out.add(out.mul(y, self._line), out.mul(column, self._channels)), j)

    def _increase(self, total: str, number: str) -> None:
        out, v = self._out, self._vectors.kind
        out.line(f"store {v} {out.set(f'fadd {v} {out.load(v, total, 64)}, {number}')}, ptr {total}, align 64")


def _sum(out: Function, numbers: str, first: str, count: str) -> str:
    """The sum of some numbers side by side."""
    total = out.variable("float", "0.0", 4)
    with out.loop("0", count) as k:
        number = out.load("float", out.element("float", numbers, out.add(first, k)))
        more = out.set(f"fadd float {out.load('float', total)}, {number}")
        out.line(f"store float {more}, ptr {total}, align 4")
    return out.load("float", total)
