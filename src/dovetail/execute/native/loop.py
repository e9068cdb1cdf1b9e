"""A loop over elements: what it loads, computes and stores. It is all that the machine code of a kernel depends on.

A loop works on cells: pieces of memory of equal element counts, each a pointer at run time. A step applies a formula to
sources: what a cell held before the loop, a number that is handed in, or the result of an earlier step. In the end
steps are stored in cells. Two cells never overlap.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from dovetail.execute.native.formula import Formula

ROW, COLUMN = "row", "column"


class From(enum.Enum):
    """Where a step's operand comes from."""

    CELL = "cell"
    NUMBER = "number"
    STEP = "step"


@dataclass(frozen=True, slots=True)
class Source:
    """The cell, number or step of an index."""

    kind: From
    index: int


@dataclass(frozen=True, slots=True)
class Cell:
    """is_single: one element that all iterations read. is_truth: bytes that are truth values. repeats: ROW or COLUMN
    where elements are read again and again; two more numbers say how: see `repeats.Repeat`.
    """

    is_single: bool = False
    is_truth: bool = False
    repeats: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """A formula and what its operands are."""

    formula: Formula
    sources: tuple[Source, ...]


@dataclass(frozen=True, slots=True)
class Loop:
    """element: "float" or "double". numbers: how many are handed in. stores: pairs of a cell and a step.

    in_rows: whether cells have rows with gaps between them. One more number says how long a row is, and one for each
    cell how far its rows lie apart: see `grids.Grid`.
    """

    element: str
    cells: tuple[Cell, ...]
    numbers: int
    steps: tuple[Step, ...]
    stores: tuple[tuple[int, int], ...]
    in_rows: bool = False

    @property
    def repeated(self) -> tuple[int, ...]:
        """The cells that are read again and again."""
        return tuple(at for at, cell in enumerate(self.cells) if cell.repeats)

    @property
    def slots(self) -> int:
        """How many eight-byte slots a call takes: the count, the pointers, the numbers, two for each such cell, and
        what is said of rows.
        """
        rows = 1 + len(self.cells) if self.in_rows else 0
        return 1 + len(self.cells) + self.numbers + 2 * len(self.repeated) + rows
