"""The row of a loop over rows: what it loads, computes and stores, found from the claims that share it.

What only this loop reads is not stored.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TypeAlias

from dovetail.execute.native.loop import From, Source
from dovetail.execute.native.machine import row_kernel_of
from dovetail.execute.native.row_functions import RowFunctionClaim
from dovetail.execute.native.row_loop import KEPT, WHOLE, Part, RowLoop, Rows, RowStep, cell_of, counts_of
from dovetail.execute.native.rows import Address, Addresses, ReadyRow, RowClaim, Storages
from dovetail.ir.program import Operand, Value

_Piece: TypeAlias = tuple[object, object, Part]  # of memory: storage and offset, or an address, and what rows read


def row_of_rows(claims: Sequence[RowClaim], rows: Rows, storages: Storages, addresses: Addresses) -> ReadyRow | None:
    """The row of claims that share a loop over the rows of a matrix; None where it would store nothing."""
    return _Builder(claims, rows, storages, addresses).build()


class _Builder:
    def __init__(self, claims: Sequence[RowClaim], rows: Rows, storages: Storages, addresses: Addresses) -> None:
        self.claims = claims
        self.rows = rows
        self.storages = storages
        self.addresses = addresses
        self.cells: dict[_Piece, int] = {}
        self.values: list[Value] = []
        self.pointers: list[Address] = []
        self.numbers: dict[object, int] = {}
        self.handed: list[tuple[Operand, float | None]] = []
        self.current: dict[_Piece, Source] = {}

    def build(self) -> ReadyRow | None:
        """The row."""
        steps = []
        written: dict[_Piece, tuple[Value, int]] = {}
        for step in self._steps():
            sources = tuple(self._source(operand, part) for operand, part in step.reads)
            steps.append((step.formula, sources))
            piece = self._piece(step.written, step.part, step.behind)
            written[piece] = (step.written, step.behind)
            self.current[piece] = Source(From.STEP, len(steps) - 1)
        stores = [
            (self._cell(piece, value, behind), self.current[piece].index)
            for piece, (value, behind) in written.items()
            if value.tensor.storage not in self.storages.unread
        ]
        if not stores:
            return None
        cells = tuple(
            cell_of(part, value.tensor.dtype, self.rows.columns)
            for (_, _, part), value in zip(self.cells, self.values, strict=True)
        )
        columns = self.rows.columns
        loop = RowLoop(cells, len(self.handed), tuple(steps), tuple(stores), columns <= KEPT)
        kernel = row_kernel_of(loop)
        assert kernel is not None, "nothing is called that may not be there"
        counts = counts_of(columns, [part for _, _, part in self.cells])
        more = struct.pack(f"{len(counts)}q", *counts)
        functions = [claim for claim in self.claims if isinstance(claim, RowFunctionClaim)]
        checks = tuple(check for claim in functions for check in claim.checks(self.addresses))
        return ReadyRow(kernel, self._items(), tuple(self.pointers), tuple(self.handed), more=more, checks=checks)

    def _items(self) -> int | Value:
        """The elements of all rows, or a value that has as many."""
        elements = self.rows.elements
        if isinstance(elements, int):
            return elements
        return next(a.value for a, (_, _, part) in zip(self.pointers, self.cells, strict=True) if part == WHOLE)

    def _steps(self) -> list[RowStep]:
        found: list[RowStep] = []
        for claim in self.claims:
            steps = claim.in_rows(self.rows)
            assert steps is not None, "only claims that work on these rows are arranged"
            found += steps
        return found

    def _source(self, operand: Operand, part: Part | float | None) -> Source:
        if isinstance(part, Part):
            assert isinstance(operand, Value), "all others are numbers"
            piece = self._piece(operand, part)
            if piece not in self.current:
                self.current[piece] = Source(From.CELL, self._cell(piece, operand))
            return self.current[piece]
        key = (operand if isinstance(operand, Value) else (type(operand), repr(operand)), part)
        if key not in self.numbers:
            self.numbers[key] = len(self.handed)
            self.handed.append((operand, part))
        return Source(From.NUMBER, self.numbers[key])

    def _piece(self, value: Value, part: Part, behind: int = 0) -> _Piece:
        meta = value.tensor
        if meta.storage in self.storages.loose:
            address = self._address(value, behind)
            return (address.value, address.behind, part)
        return (meta.storage, (meta.offset, behind), part)

    def _address(self, value: Value, behind: int) -> Address:
        """Where a value begins, or an element behind that."""
        address = self.addresses.get(value, Address(value))
        return Address(address.value, address.behind + behind * value.tensor.dtype.itemsize)

    def _cell(self, piece: _Piece, value: Value, behind: int = 0) -> int:
        if piece not in self.cells:
            self.cells[piece] = len(self.values)
            self.values.append(value)
            self.pointers.append(self._address(value, behind))
        return self.cells[piece]
