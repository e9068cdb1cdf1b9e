"""Recurrent layers over weights in panels as machine code: calls of nodes, and rows of clusters.

One form says how a layer is called, for sizes: of descriptions, where a node is a row of a cluster, and of tensors,
where it is called by itself. Where a mode of torch watches, or operands lie in another way, the primitive runs instead.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import TypeVar

import torch

from dovetail.execute.native.call_memory import around
from dovetail.execute.native.claim_base import OwnKernelBase
from dovetail.execute.native.driver import THREADED
from dovetail.execute.native.machine import driver
from dovetail.execute.native.panel_rows import is_in_order, known_sizes
from dovetail.execute.native.panels import items_of, multiplies_panels, usual_tile
from dovetail.execute.native.recurrent_text import recurrent_function
from dovetail.execute.native.rows import Address, Addresses, ReadyRow, Storages, table_row
from dovetail.execute.native.tile_text import Tile
from dovetail.ir.prim import Prim
from dovetail.ir.program import Node, Operand, Value
from dovetail.ops.panels import GATES, RecurrentLayer, check_layer, panels_shape, states_of
from dovetail.torch_compat.fakes import is_fake
from dovetail.torch_compat.native_symbols import no_mode_watches

_ROWS = 64  # of inputs that are multiplied at once, if there are as many
_ITEMSIZE = torch.float32.itemsize
_MOST_FORMS = 64  # sizes that a node remembers
_DIMENSIONS, _LISTS = 3, 3
_T = TypeVar("_T")

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Form:
    """How a layer is called. sums: elements that it needs for itself. more: slots behind the pointers."""

    function: int
    items: int
    sums: int
    more: bytes


def form_of(
    kind: str, sizes: Sequence[int], strides: Sequence[int], hidden: int, directions: int, has_bias: bool, tile: Tile
) -> Form | None:
    """The call of a layer for a sequence (time, batch, inputs); None where there is nothing to compute."""
    steps, batch, inputs = sizes
    if 0 in sizes or not hidden or (strides[2] != 1 and inputs > 1):
        return None
    gates, part = GATES[kind] * hidden, max(1, min(steps, _ROWS // batch))
    items = items_of(steps * batch * directions, inputs + hidden, gates) if batch > 1 else 1
    more = struct.pack("9q", *sizes, hidden, directions, has_bias, *strides[:2], part)
    return Form(recurrent_function(kind, tile), items, (part + 1) * batch * gates, more)


def recurrent_call(run: RecurrentLayer, tile: Tile | None = None) -> Callable[..., tuple[torch.Tensor, ...]]:
    """What is called in a primitive's place, by one node; the same results, but for rounding. tile: None for this
    processor's.
    """
    drive, forms, known, tile = driver(), dict[object, Form | None](), list[torch.Tensor](), tile or usual_tile()

    def call(
        x: torch.Tensor,
        weights: Sequence[torch.Tensor],
        biases: Sequence[torch.Tensor],
        states: Sequence[torch.Tensor],
    ) -> tuple[torch.Tensor, ...]:
        plain = (*weights, *biases)
        if len(plain) != len(known) or any(a is not b for a, b in zip(plain, known, strict=True)):
            check_layer(run.kind, x, weights, biases, states)
            if any(each.dim() != _DIMENSIONS for each in weights) or not all(each.is_contiguous() for each in plain):
                return run(x, weights, biases, states)
            known[:] = plain
            forms.clear()
        if x.is_neg() or (x.stride(-1) != 1 and x.shape[-1] > 1):
            x = x.resolve_neg().contiguous()
        key = (x.shape, x.stride(), *(state.shape for state in states))
        if key not in forms:
            check_layer(run.kind, x, weights, biases, states)
            if len(forms) >= _MOST_FORMS:
                forms.clear()
            directions, _, hidden = states[0].shape
            forms[key] = form_of(run.kind, x.shape, x.stride(), hidden, directions, bool(biases), tile)
        form = forms[key]
        are_floats = x.dtype is torch.float32 and all(state.dtype is torch.float32 for state in states)
        if form is None or not are_floats or not no_mode_watches() or is_fake(x):
            return run(x, weights, biases, states)
        states = [
            state if state.is_contiguous() and not state.is_neg() else state.resolve_neg().contiguous()
            for state in states
        ]
        directions, batch, hidden = states[0].shape
        out = x.new_empty((*x.shape[:2], directions * hidden))
        lasts = [x.new_empty((directions, batch, hidden)) for _ in states]
        sums = x.new_empty(form.sums)
        tensors = [
            out,
            lasts[0],
            lasts[-1],
            sums,
            x,
            states[0],
            states[-1],
            *_twice(weights),
            *_twice(biases or [out] * 2),
        ]
        table = table_row(form.function, form.items, [each.data_ptr() for each in tensors], (), form.more)
        if drive(table, 1, torch.get_num_threads() if form.items >= THREADED else 1, 0):
            return run(x, weights, biases, states)
        return (out, *lasts)

    return call


def _twice(given: Sequence[_T]) -> list[_T]:
    """Weights or biases of two directions, of which the second may not be read."""
    return [*given, *given][:4]


@dataclass(frozen=True, slots=True)
class RecurrentClaim(OwnKernelBase):
    """See `rows.RowClaim`. operands: x, weights, biases, states, in this order. results: None for those not read."""

    node: Node
    operands: tuple[Operand, ...]
    result: Value
    results: tuple[Value | None, ...]
    of_state: Shape
    form: Form
    into: Value | None = None
    layout: None = None
    element: str = "i8"

    @property
    def made(self) -> tuple[Value, ...]:
        """The results that get new memory."""
        return tuple(value for value in self.results if value is not None)

    @property
    def own_bytes(self) -> int:
        """What it takes for itself while it runs."""
        return _ITEMSIZE * (self.form.sums + self.results.count(None) * prod(self.of_state))


def recurrent_claim(node: Node) -> RecurrentClaim | None:
    """The claim on a node, as far as descriptions say."""
    run = node.target.run if isinstance(node.target, Prim) else None
    if not isinstance(run, RecurrentLayer) or node.kwargs or not multiplies_panels():
        return None
    x, (result, *lasts) = node.args[0], node.outputs
    lists = [
        [each for each in one if isinstance(each, Value)] for one in node.args[1:] if isinstance(one, list | tuple)
    ]
    if not isinstance(x, Value) or result is None or len(lists) != _LISTS:
        return None
    weights, biases, states = lists
    ready = [*weights, *biases, *states, *node.results()]
    sizes, strides = known_sizes(x.tensor), [step for step in x.tensor.stride if isinstance(step, int)]
    if not all(is_in_order(value.tensor) for value in ready) or not len(sizes) == len(strides) == _DIMENSIONS:
        return None
    if x.tensor.dtype is not torch.float32 or x.tensor.device.type != "cpu":
        return None
    of_state = known_sizes(states[0].tensor) if states else ()
    if len(of_state) != _DIMENSIONS or not _fit(run.kind, sizes, of_state, lists):
        return None
    directions, _, hidden = of_state
    wanted = [(*sizes[:2], directions * hidden), *[of_state] * states_of(run.kind)]
    found = [None if value is None else known_sizes(value.tensor) for value in node.outputs]
    if len(found) != len(wanted) or any(a not in (None, b) for a, b in zip(found, wanted, strict=True)):
        return None
    form = form_of(run.kind, sizes, strides, hidden, directions, bool(biases), usual_tile())
    if form is None:
        return None
    return RecurrentClaim(node, (x, *weights, *biases, *states), result, (result, *lasts), of_state, form)


def _fit(kind: str, sizes: Shape, of_state: Shape, lists: Sequence[Sequence[Value]]) -> bool:
    """Whether machine code reads what there is, of these descriptions."""
    directions, batch, hidden = of_state
    weights, biases, states = ([known_sizes(value.tensor) for value in values] for values in lists)
    outputs = GATES[kind] * hidden
    panels = [panels_shape(outputs, size) for _ in range(directions) for size in (sizes[2], hidden)]
    return (
        directions in (1, 2)
        and sizes[1] == batch
        and states == [of_state] * states_of(kind)
        and weights == panels
        and biases in ([], [(outputs,)] * len(panels))
    )


def recurrent_row(claims: Sequence[RecurrentClaim], _: Storages, addresses: Addresses) -> ReadyRow | None:
    """The row of a claim."""
    (claim,) = claims
    room, take, let_go = around(f"{claim.result.name}_sums", claim.own_bytes)
    unread = Address(room, claim.form.sums * _ITEMSIZE)

    def of(value: Value | None) -> Address:
        nonlocal unread
        if value is not None:
            return addresses.get(value, Address(value))
        mine, unread = unread, Address(room, unread.behind + _ITEMSIZE * prod(claim.of_state))
        return mine

    x, *others = [of(value) for value in claim.operands if isinstance(value, Value)]
    out, *lasts = [of(value) for value in claim.results]
    count = 2 * claim.of_state[0]
    weights, biases, states = others[:count], others[count : -len(lasts)], others[-len(lasts) :]
    pointers = [out, lasts[0], lasts[-1], Address(room), x, states[0], states[-1]]
    pointers += [*_twice(weights), *_twice(biases or [out] * 2)]
    form = claim.form
    return ReadyRow(form.function, form.items, tuple(pointers), more=form.more, before=(take,), after=(let_go,))
