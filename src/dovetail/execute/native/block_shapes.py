"""How products of matrices are cut into blocks: see `blocked_text`."""

from __future__ import annotations

from dataclasses import dataclass

BLOCK = 256
"""Products that are summed in registers."""

FEWEST = 8
"""Rows that a product has at least."""

KEPT_ROWS = 144
"""Rows of a first operand that are copied at once: a block of them stays in a cache of the second level."""

TURNED_ROWS = 96
"""Rows of a turned first operand that are copied at once."""


@dataclass(frozen=True, slots=True)
class Shape:
    """lanes: of a vector. rows: of a tile, so that two vectors for each, a line and a number fit in registers."""

    lanes: int
    rows: int

    @property
    def width(self) -> int:
        """Columns of a tile."""
        return 2 * self.lanes

    @property
    def heights(self) -> list[int]:
        """How many rows tiles have, where there are `FEWEST` or more in all."""
        counts = [(rows, -(-rows // self.rows)) for rows in range(FEWEST, KEPT_ROWS + 1)]
        return sorted({rows // parts + extra for rows, parts in counts for extra in range(1 + (rows % parts > 0))})


AVX2 = Shape(8, 6)


@dataclass(frozen=True, slots=True)
class Form:
    """turned: which operands have their columns one behind the other in memory."""

    turned: tuple[bool, bool]


def shares_of(form: Form, shape: Shape, rows: int, columns: int) -> int:
    """How many shares of the work there are, at most one for each thread."""
    return -(-rows // TURNED_ROWS) if form.turned[0] else -(-columns // shape.width)


def items_of_share(form: Form, shape: Shape, rows: int, inner: int, columns: int) -> int:
    """How many items of the driver's a share is: it gives a thread no fewer than 32,768 of them, which are a million
    products then.
    """
    return max(1, inner * (TURNED_ROWS * columns if form.turned[0] else rows * shape.width) // 32)
