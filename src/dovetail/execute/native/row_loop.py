"""Loops over the rows of a matrix, in which sums and largest elements of a row are known when its elements are used.

    (rows, columns)   an operand of all elements, or one that rows take in turns, of which each reads a whole piece
    (rows,)           one number for each row, or for several of them

A row is gone through in sections: one more than there are sums in a row that wait for each other. It is in the cache
from the second section on.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

from dovetail.execute.native.formula import Formula
from dovetail.execute.native.loop import Source
from dovetail.execute.native.repeats import ENDLESS
from dovetail.ir.program import Operand, Value
from dovetail.ir.sizes import Size, product

KEPT = 2048
"""Columns up to which results are kept from one section to the next, on the stack; of more they are computed again."""


@dataclass(frozen=True, slots=True)
class Rows:
    """A matrix, whose elements lie in order. elements: all of them."""

    rows: Size
    columns: int
    elements: Size


def matrix(lead: Sequence[Size], columns: int) -> Rows:
    """The matrix that tensors of some sizes, and then of so many elements, are."""
    return Rows(product(tuple(lead)), columns, product((*lead, columns)))


class Span(enum.Enum):
    """What a row reads of memory."""

    WHOLE = "whole"
    PIECE = "piece"
    EACH = "each"
    SINGLE = "single"


@dataclass(frozen=True, slots=True)
class Part:
    """Row r reads of a PIECE the elements from (r * columns) % size on, and of EACH that at (r / inner) % size. Of a
    WHOLE, rows lie `inner` elements apart; 0 stands for as many as there are columns.
    """

    span: Span
    inner: int
    size: int = ENDLESS

    @property
    def is_own(self) -> bool:
        """Whether no row reads what another one may write, if both lie alike."""
        return self.span is Span.WHOLE or self == EACH


WHOLE, SINGLE, EACH = Part(Span.WHOLE, 0), Part(Span.SINGLE, 1), Part(Span.EACH, 1)


def part_of(span: Span, columns: int) -> Part:
    """The part of a tensor that lies in order: all of it, its own number for each row, one row for all, or a number."""
    return {Span.WHOLE: WHOLE, Span.EACH: EACH, Span.SINGLE: SINGLE}.get(span) or Part(span, 1, columns)


def whole(pitch: int, columns: int) -> Part:
    """All elements, in rows that lie so many elements apart."""
    return WHOLE if pitch == columns else Part(Span.WHOLE, pitch)


Read: TypeAlias = tuple[Operand, "Part | float | None"]
"""An operand, and which part of it is read, or, of a number, which value it must not have."""


@dataclass(frozen=True, slots=True)
class RowStep:
    """What a node does in such a loop: a formula, what it reads, what it gives, which part of that, and how many
    elements behind its start.
    """

    formula: Formula
    reads: tuple[Read, ...]
    written: Value
    part: Part
    behind: int = 0


@dataclass(frozen=True, slots=True)
class RowCell:
    """A piece of memory. kind: of its elements, as LLVM names it; `i8` for truth values. is_plain: whether each row has
    a number of its own (EACH), or all rows read the same piece.
    """

    span: Span
    kind: str = "float"
    is_plain: bool = False

    @property
    def is_truth(self) -> bool:
        """Whether its elements are truth values."""
        return self.kind == "i8"


def cell_of(part: Part, dtype: torch.dtype, columns: int) -> RowCell:
    """The cell of a part."""
    return RowCell(part.span, KINDS[dtype], part == EACH or part == Part(Span.PIECE, 1, columns))


KINDS = {torch.float32: "float", torch.bool: "i8", torch.int64: "i64"}
"""Names of element types in LLVM's text."""


@dataclass(frozen=True, slots=True)
class RowLoop:
    """cells, numbers, steps, stores: as in `loop.Loop`, of float32. keeps: whether there are at most `KEPT` columns."""

    cells: tuple[RowCell, ...]
    numbers: int
    steps: tuple[tuple[Formula, tuple[Source, ...]], ...]
    stores: tuple[tuple[int, int], ...]
    keeps: bool


def counts_of(columns: int, parts: Sequence[Part]) -> list[int]:
    """What a loop is told besides pointers and numbers: columns, and two numbers for each cell."""
    return [columns, *(number for part in parts for number in (part.inner or columns, part.size))]
