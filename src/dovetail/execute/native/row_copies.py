"""Parts that are put side by side (`cat`, `stack`), as rows: what computes them writes them where they belong."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from dovetail.execute.native.copies import CopyClaim, copy_parts
from dovetail.execute.native.formula import operand
from dovetail.execute.native.row_loop import Rows, RowStep, matrix, whole
from dovetail.ir.program import Node


@dataclass(frozen=True, slots=True)
class RowCopyClaim(CopyClaim):
    """A claim on a node whose parts have rows of one length."""

    @property
    def rows(self) -> Rows:
        """The rows of a part."""
        return matrix((self.parts[0].rows,), self.parts[0].width)

    def in_rows(self, rows: Rows) -> tuple[RowStep, ...] | None:
        """Each part is copied, row by row."""
        if rows != self.rows:
            return None
        width = rows.columns
        return tuple(
            RowStep(
                operand(0),
                ((part.source, whole(part.source_pitch, width)),),
                self.written,
                whole(part.pitch, width),
                part.place,
            )
            for part in self.parts
        )


def row_copy_claim(node: Node) -> RowCopyClaim | None:
    """The claim on a node, as far as descriptions say."""
    found = copy_parts(node)
    if found is None or found.is_among_zeros or found.written.tensor.dtype is not torch.float32:
        return None
    rows = {(part.rows, part.width) for part in found.parts}
    if len(rows) > 1 or min(map(min, rows)) < 2:
        return None
    return RowCopyClaim(node, found.parts, found.into, found.result, found.count, is_among_zeros=False)
