"""Convolutions by panels and by taps of channels as rows: of known sizes, over images with channels last.

Where padding is copied around the image, or its channels come first, rows before the one of the convolution take memory
for it and copy, and one behind it lets the memory go. As for products by panels, nothing is tried: the node has the
same functions by itself.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from dovetail.execute.native.call_memory import around
from dovetail.execute.native.claim_base import OwnKernelBase
from dovetail.execute.native.convolutions import Plan, convolution_function, planned
from dovetail.execute.native.driver import LOOSE
from dovetail.execute.native.panel_rows import is_in_order, known_sizes
from dovetail.execute.native.panels import Finish, finish_of, multiplies_panels, usual_tile
from dovetail.execute.native.rows import Address, Addresses, ReadyRow, Storages
from dovetail.ir.prim import Prim
from dovetail.ir.program import Node, Operand, TensorMeta, Value
from dovetail.ops.panel_convolutions import PanelConv, taps_shape

_ITEMSIZE = torch.float32.itemsize
_IMAGE = 4


@dataclass(frozen=True, slots=True)
class ConvolutionClaim(OwnKernelBase):
    """See `rows.RowClaim`. operands: x, taps, and the bias and the addend if there are any. is_of_planes: whether
    channels of x come first.
    """

    node: Node
    operands: tuple[Operand, ...]
    result: Value
    bias: Value | None
    addend: Value | None
    plan: Plan
    finish: Finish
    is_of_planes: bool
    into: Value | None = None
    layout: None = None
    element: str = "i8"

    @property
    def own_bytes(self) -> int:
        """What the image, or parts of it, take with padding around, or transformed."""
        return self.plan.room * _ITEMSIZE


def convolution_claim(node: Node) -> ConvolutionClaim | None:
    """The claim on a node, as far as descriptions say."""
    run = node.target.run if isinstance(node.target, Prim) else None
    if not isinstance(run, PanelConv) or node.kwargs or len(node.results()) != 1 or not multiplies_panels():
        return None
    x, taps, bias, size, padding, stride, groups, *rest = node.args
    addend, *others = *rest, None
    finish, (result,) = finish_of(run.activation), node.results()
    if finish is None or any(each is not None for each in others) or not isinstance(groups, int):
        return None
    lists = [_numbers(each) for each in (size, padding, stride)]
    operands = tuple(each for each in (x, taps, bias, addend) if each is not None)
    values = [each for each in operands if isinstance(each, Value) and each.is_tensor]
    if None in lists or len(values) < len(operands) or not is_image(result.tensor):
        return None
    is_of_planes = not is_image(values[0].tensor)
    if is_of_planes and not (is_in_order(values[0].tensor) and len(values[0].tensor.shape) == _IMAGE):
        return None
    sizes, pads, steps = (each or () for each in lists)
    weights = [(values[1], taps_shape(sizes, groups)), *([(values[2], (sizes[0],))] if bias is not None else [])]
    if not all(is_in_order(value.tensor) and known_sizes(value.tensor) == shape for value, shape in weights):
        return None
    if addend is not None and not (groups == 1 and _lies_as(values[-1].tensor, result.tensor)):
        return None
    panels, *_ = taps_shape(sizes, groups)
    adds = addend is not None
    plan = planned(known_sizes(values[0].tensor), sizes, pads, steps, groups, panels, copies=is_of_planes, adds=adds)
    if plan is None or plan.shape != known_sizes(result.tensor) or (groups > 1 and sizes[:2] != (groups, 1)):
        return None
    given = (values[2] if bias is not None else None, values[-1] if adds else None)
    return ConvolutionClaim(node, operands, result, *given, plan, finish, is_of_planes)


def _lies_as(addend: TensorMeta, result: TensorMeta) -> bool:
    """Whether what is added lies in memory as the result does."""
    return is_image(addend) and addend.shape == result.shape


def _numbers(operand: Operand) -> tuple[int, ...] | None:
    """A list of known numbers."""
    found = [each for each in operand if isinstance(each, int)] if isinstance(operand, list | tuple) else None
    return tuple(found) if found is not None and len(found) == len(operand) else None  # type: ignore[arg-type]


def is_image(meta: TensorMeta) -> bool:
    """Whether a tensor is images of float32 on the CPU, of known sizes, with channels last and without gaps."""
    if len(meta.shape) != _IMAGE:
        return False
    shape, stride = ((numbers[0], *numbers[2:], numbers[1]) for numbers in (meta.shape, meta.stride))
    last = replace(meta, shape=shape, stride=stride)
    return is_in_order(last)


def convolution_row(claims: Sequence[ConvolutionClaim], _: Storages, addresses: Addresses) -> ReadyRow | None:
    """The row of a claim."""
    (claim,) = claims
    plan, tile = claim.plan, usual_tile()
    values = [claim.result, *(value for value in claim.operands[:2] if isinstance(value, Value))]
    given = [claim.bias] if plan.kind == "pixels" else [claim.bias, claim.addend]
    values += [claim.result if value is None else value for value in given]  # a pointer that is not read
    out, x, *weights = (addresses.get(value, Address(value)) for value in values)
    before, after, room = list[ReadyRow](), list[ReadyRow](), out
    if plan.room:
        value, take, let_go = around(f"{claim.result.name}_room", claim.own_bytes)
        before, after, room = [take], [let_go], Address(value)
    if plan.filled:
        items, *sizes = plan.filled
        copy = "winograd_weight" if plan.fills_weight else "planes" if claim.is_of_planes else "pad"
        source, more = weights[0] if plan.fills_weight else x, struct.pack(f"{len(sizes)}q", *sizes)
        before.append(ReadyRow(convolution_function(copy, tile), items, (room, source), more=more, marks=LOOSE))
        x = x if plan.fills_weight else room
    flags = [value is not None for value in given]
    more = struct.pack(f"{len(plan.sizes) + len(flags)}q2fq", *plan.sizes, *flags, *claim.finish)
    pointers = (out, x, *weights) if plan.kind == "pixels" else (out, x, *weights, room)
    function = convolution_function(plan.kind, tile)
    return ReadyRow(function, plan.items, pointers, more=more, before=tuple(before), after=tuple(after), marks=LOOSE)
