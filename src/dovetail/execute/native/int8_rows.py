"""Products of 8-bit integers by panels, and the rounding of their inputs, as machine code: calls of nodes, and rows.

One form says how a kernel is called, for shapes: of descriptions, where a node is a row of a cluster, and of tensors,
where it is called by itself. Where a mode of torch watches, or operands lie in another way, the primitive runs instead.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from dovetail.execute.native.claim_base import OwnKernelBase
from dovetail.execute.native.driver import LOOSE, THREADED
from dovetail.execute.native.int8_text import int8_function
from dovetail.execute.native.machine import driver, has_dot_products, unavailable
from dovetail.execute.native.panels import CLAMPS, Finish, finish_of, items_of, multiplies_panels, usual_tile
from dovetail.execute.native.round_rows_text import rounding_function
from dovetail.execute.native.rows import Address, Addresses, ReadyRow, Storages, table_row
from dovetail.execute.native.tile_text import NARROW, WIDE, Tile
from dovetail.ir.prim import Prim
from dovetail.ir.program import Node, Operand, Value
from dovetail.ops.packed import applied
from dovetail.ops.quantized import GROUP, QUANTIZE_ROWS, ROW_RANGES, Int8PanelLinear, int8_panels_shape
from dovetail.torch_compat.fakes import is_fake
from dovetail.torch_compat.native_symbols import no_mode_watches

Shape = tuple[int, ...]

_MOST_FORMS = 64  # shapes that a node remembers
_NEW = object()
_FLOAT, _LEVEL, _FEW = torch.float32, torch.uint8, torch.int8
_DTYPES = {
    ROW_RANGES: (_FLOAT, _FLOAT),
    QUANTIZE_ROWS: (_LEVEL, _FLOAT, _FLOAT),
}
_DTYPES_OF_PRODUCTS = (_FLOAT, _LEVEL, _FEW, _FLOAT, _FLOAT, _FLOAT, _FLOAT)


@dataclass(frozen=True, slots=True)
class Form:
    """How a kernel is called. shape: of the result. more: slots behind the pointers: to the result, then to operands;
    to the result in place of a bias that there is none of.
    """

    function: int
    items: int
    shape: Shape
    more: bytes


@cache
def multiplies_int8_panels() -> bool:
    """Whether machine code for such products can be made here, and this processor has instructions for them."""
    return not unavailable() and has_dot_products(NARROW.lanes)


def usual_int8_tile() -> Tile:
    """The tiles for this processor."""
    return WIDE if has_dot_products(WIDE.lanes) else NARROW


def has_int8_kernel(target: object) -> bool:
    """Whether there is a kernel for a primitive here."""
    if isinstance(target, Prim) and isinstance(target.run, Int8PanelLinear):
        return multiplies_int8_panels()
    return (target is ROW_RANGES or target is QUANTIZE_ROWS) and multiplies_panels()


def dtypes_of(target: Prim) -> tuple[torch.dtype, ...]:
    """Of the result and of operands."""
    return _DTYPES.get(target, _DTYPES_OF_PRODUCTS)


def form_of(target: Prim, shapes: Sequence[Shape | None], tile: Tile | None = None) -> Form | None:
    """The call of a kernel for operands of these shapes; None where it does not take them. tile: None for this
    processor's.
    """
    given, *rest = shapes
    if given is None or len(given) < 1 or 0 in given:
        return None
    rows, columns = 1, given[-1]
    for size in given[:-1]:
        rows *= size
    if target is ROW_RANGES or target is QUANTIZE_ROWS:
        kind, shape = ("ranges", (*given[:-1], 2)) if target is ROW_RANGES else ("levels", given)
        if rest not in ([], [(*given[:-1], 2)]):
            return None
        function = rounding_function(kind, usual_tile().lanes)
        return Form(function, items_of(rows, columns, 1), shape, struct.pack("2q", rows, columns))
    panels, ranges, scales, sums, *bias = rest
    outputs = scales[0] if scales else 0
    if columns % GROUP or not outputs or panels != int8_panels_shape(outputs, columns):
        return None
    if ranges != (*given[:-1], 2) or any(each not in ((outputs,), None) for each in (scales, sums, *bias)):
        return None
    has_bias = any(each is not None for each in bias)
    finish = _finish(target) or (*CLAMPS["none"], 0)
    more = struct.pack("5q2fq", rows, columns // GROUP, outputs, panels[0], has_bias, *finish)
    items = items_of(rows, columns, outputs) // GROUP + 1
    return Form(int8_function(tile or usual_int8_tile()), items, (*given[:-1], outputs), more)


def _finish(target: Prim) -> Finish | None:
    """How a kernel applies the activation of a product; None where it does not."""
    assert isinstance(target.run, Int8PanelLinear), "others have none"
    return finish_of(target.run.activation)


def int8_call(target: Prim, tile: Tile | None = None) -> Callable[..., Any]:
    """What is called in a primitive's place, by one node; the same results, but for rounding. tile: None for this
    processor's.
    """
    drive, forms = driver(), dict[object, Form | None]()
    result_dtype, *dtypes = dtypes_of(target)
    is_product = isinstance(target.run, Int8PanelLinear)
    rest = target.run.activation if isinstance(target.run, Int8PanelLinear) and _finish(target) is None else "none"

    def call(x: torch.Tensor, *others: torch.Tensor | None) -> Any:
        shapes = (x.shape, *(None if each is None else each.shape for each in others))
        if (form := forms.get(shapes, _NEW)) is _NEW:
            if len(forms) >= _MOST_FORMS:
                forms.clear()
            form = forms[shapes] = form_of(target, [None if s is None else tuple(s) for s in shapes], tile)
        if not isinstance(form, Form) or not no_mode_watches() or is_fake(x):
            return target(x, *others)
        if not x.is_contiguous() or x.is_neg():
            x = x.resolve_neg().contiguous()
        given = [x, *(each for each in others if each is not None)]
        if any(each.dtype is not dtype or not each.is_contiguous() for each, dtype in zip(given, dtypes, strict=False)):
            return target(x, *others)
        made = x.new_empty(form.shape, dtype=result_dtype)
        pointers = [made.data_ptr(), *(each.data_ptr() for each in given)]
        pointers += [pointers[0]] if is_product and len(given) < len(dtypes) else []
        table = table_row(form.function, form.items, pointers, (), form.more, LOOSE)
        if drive(table, 1, torch.get_num_threads() if form.items >= THREADED else 1, 0):
            return target(x, *others)
        return applied(rest, made)

    return call


@dataclass(frozen=True, slots=True)
class Int8Claim(OwnKernelBase):
    """See `rows.RowClaim`."""

    node: Node
    operands: tuple[Operand, ...]
    result: Value
    form: Form
    pointers: int
    into: Value | None = None
    layout: None = None
    element: str = "i8"


def int8_claim(node: Node) -> Int8Claim | None:
    """The claim on a node, as far as descriptions say."""
    target = node.target
    if not isinstance(target, Prim) or not has_int8_kernel(target) or node.kwargs or len(node.results()) != 1:
        return None
    is_product = isinstance(target.run, Int8PanelLinear)
    if is_product and _finish(target) is None:
        return None
    operands = tuple(each for each in node.args if each is not None)
    values = [each for each in operands if isinstance(each, Value) and each.is_tensor]
    if len(values) < len(operands):
        return None
    dtypes, (result,) = dtypes_of(target), node.results()
    for value, dtype in zip((result, *values), dtypes, strict=False):
        meta = value.tensor
        is_known = all(isinstance(size, int) for size in meta.shape)
        if meta.dtype is not dtype or meta.device.type != "cpu" or not is_known or not meta.is_contiguous():
            return None
    form = form_of(target, [_known(value) for value in values])
    if form is None or form.shape != _known(result):
        return None
    return Int8Claim(node, operands, result, form, len(dtypes))


def _known(value: Value) -> Shape:
    return tuple(size for size in value.tensor.shape if isinstance(size, int))


def int8_row(claims: Sequence[Int8Claim], _: Storages, addresses: Addresses) -> ReadyRow | None:
    """The row of a claim."""
    (claim,) = claims
    values = [claim.result, *(value for value in claim.operands if isinstance(value, Value))]
    values += [claim.result] * (claim.pointers - len(values))  # a pointer that is not read
    pointers = tuple(addresses.get(value, Address(value)) for value in values)
    return ReadyRow(claim.form.function, claim.form.items, pointers, more=claim.form.more, marks=LOOSE)
