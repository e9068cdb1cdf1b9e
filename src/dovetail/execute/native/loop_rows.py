"""The row of a loop: what it loads, computes and stores, found from the claims that share it.

What only this loop reads is not stored.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dovetail.execute.native.claims import Claim, How
from dovetail.execute.native.grids import Pitch
from dovetail.execute.native.loop import COLUMN, ROW, Cell, From, Loop, Source, Step
from dovetail.execute.native.machine import kernel_of
from dovetail.execute.native.probes import NUMBER
from dovetail.execute.native.repeats import ENDLESS, Repeat
from dovetail.execute.native.rows import Address, Addresses, Count, ReadyRow, Storages
from dovetail.ir.program import Operand, Value

Place = tuple[int | Value, object, torch.dtype, object]
"""A piece of memory as a loop sees it: storage and offset, or an address where storages are loose, dtype, and how it is
read: see `claims.How`.
"""


def loop_row(claims: Sequence[Claim], storages: Storages, addresses: Addresses) -> ReadyRow | None:
    """The row of claims that share a loop; None where it would store nothing."""
    return _Builder(claims, storages, addresses).build()


class _Builder:
    def __init__(self, claims: Sequence[Claim], storages: Storages, addresses: Addresses) -> None:
        self.claims = claims
        self.storages = storages
        self.addresses = addresses
        self.cells: dict[Place, int] = {}
        self.kinds: list[Cell] = []
        self.pointers: list[Address] = []
        self.counts: list[int | Count] = []
        self.numbers: dict[object, int] = {}
        self.operands: list[tuple[Operand, float | None]] = []
        self.current: dict[Place, Source] = {}
        self.steps: list[Step] = []
        self.grid = claims[0].grid

    def build(self) -> ReadyRow | None:
        written: dict[Place, Value] = {}
        for claim in self.claims:
            avoided = dict(claim.question.avoided)
            sources = [
                self._source(operand, kind, avoided.get(name), how)
                for operand, (name, kind), how in zip(claim.operands, claim.question.operands, claim.hows, strict=True)
            ]
            formula = claim.formula()
            assert formula is not None, "only claims whose formula is known are arranged"
            place = self._place(claim.written, claim.how_written)
            self.current[place] = Source(From.STEP, len(self.steps))
            self.steps.append(Step(formula, tuple(sources)))
            written[place] = claim.written
        stores = [
            (self._cell(place, value), self.current[place].index)
            for place, value in written.items()
            if value.tensor.storage not in self.storages.unread
        ]
        if not stores:
            return None
        cells, element = tuple(self.kinds), self.claims[0].element
        steps, in_rows = tuple(self.steps), self.grid is not None
        kernel = kernel_of(Loop(element, cells, len(self.operands), steps, tuple(stores), in_rows))
        assert kernel is not None, "a formula that was found has its vector functions"
        pointers, counts = tuple(self.pointers), tuple(self.counts)
        if self.grid is not None:
            counts = (self.grid.inner, *counts)
        return ReadyRow(kernel, self._items(), pointers, tuple(self.operands), counts=counts)

    def _items(self) -> int | Value:
        count = self.claims[0].written.tensor.numel()
        if isinstance(count, int):
            return count
        return next(
            a.value for a, cell in zip(self.pointers, self.kinds, strict=True) if not (cell.is_single or cell.repeats)
        )

    def _source(self, operand: Operand, kind: str, avoided: float | None, how: How) -> Source:
        if kind == NUMBER:
            key = (operand if isinstance(operand, Value) else (type(operand), repr(operand)), avoided)
            if key not in self.numbers:
                self.numbers[key] = len(self.operands)
                self.operands.append((operand, avoided))
            return Source(From.NUMBER, self.numbers[key])
        assert isinstance(operand, Value), "all others are tensors"
        place = self._place(operand, how)
        if place not in self.current:
            self.current[place] = Source(From.CELL, self._cell(place, operand))
        return self.current[place]

    def _place(self, value: Value, how: How) -> Place:
        meta = value.tensor
        if meta.storage in self.storages.loose:
            address = self.addresses.get(value, Address(value))
            return (address.value, address.behind, meta.dtype, how)
        return (meta.storage, meta.offset, meta.dtype, how)

    def _cell(self, place: Place, value: Value) -> int:
        if place not in self.cells:
            self.cells[place] = len(self.kinds)
            is_truth, how = value.tensor.dtype is torch.bool, place[3]
            repeats = (ROW if how.is_row else COLUMN) if isinstance(how, Repeat) else ""
            self.kinds.append(Cell(is_single=how is True, is_truth=is_truth, repeats=repeats))
            if isinstance(how, Repeat):
                self.counts += _counts(how, self.addresses.get(value, Address(value)).value)
            elif self.grid is not None:
                self.counts.append(how.elements if isinstance(how, Pitch) else 0)
            self.pointers.append(self.addresses.get(value, Address(value)))
        return self.cells[place]


def _counts(repeat: Repeat, holder: Value) -> list[int | Count]:
    """What a kernel is told of a repeated cell: inner and size. holder: with a variable; sizes that are not known in
    advance are read there, for then nothing else lies at its address.
    """
    if repeat.inner is None:
        return [Count(holder, repeat.own, divides=True), ENDLESS]
    return [repeat.inner, repeat.size if isinstance(repeat.size, int) else Count(holder, repeat.own)]
