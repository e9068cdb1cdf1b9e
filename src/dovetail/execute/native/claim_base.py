"""What claims of all kinds have in common: see `rows.RowClaim`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import torch

from dovetail.execute.native.row_loop import Rows, RowStep
from dovetail.execute.native.rows import Access
from dovetail.ir.program import Node, Operand, Value

ELEMENTS = {torch.float32: "float", torch.float64: "double"}
"""Names of element types in LLVM's text."""


class Typed(Protocol):
    """What a claim asks a probe: about an operator for elements of a dtype."""

    @property
    def dtype(self) -> torch.dtype:
        """Of the elements."""


class PlacedBase:
    """Where the result goes, and what is read. operands, into, result: see `rows.RowClaim`."""

    __slots__ = ()
    operands: tuple[Operand, ...]
    into: Value | None
    result: Value

    @property
    def rows(self) -> Rows | None:
        """The matrix of whose rows it is a function."""
        return None

    def in_rows(self, rows: Rows) -> tuple[RowStep, ...] | None:
        """What it does in a loop over rows."""
        return None

    @property
    def pays_alone(self) -> bool:
        """Whether a cluster is made for it alone: by itself the node runs a kernel of torch's that takes longer."""
        return False

    @property
    def has_scratch(self) -> bool:
        """Whether the node's operator may take memory for itself, which is measured."""
        return False

    def bytes_in_row(self, alone: int) -> int:
        """What its row takes while it runs. alone: what the node takes by itself."""
        return alone

    @property
    def room(self) -> int:
        """How much of that rows around its row take: see `call_memory.around`."""
        return 0

    @property
    def written(self) -> Value:
        """The value that describes the memory that is written."""
        return self.result if self.into is None else self.into

    @property
    def made(self) -> tuple[Value, ...]:
        """The results that get new memory."""
        return () if self.into is not None else (self.result,)

    def accesses(self) -> list[Access]:
        """What it touches."""
        written = [Access(value.tensor, is_written=True) for value in (self.made or (self.written,))]
        return written + [Access(value.tensor) for value in self.operands if isinstance(value, Value)]

    @property
    def checked(self) -> tuple[Value, ...]:
        """What a check reads before all rows run."""
        return ()


class OwnKernelBase(PlacedBase):
    """A claim on a node whose kernel is dovetail's own, by itself as well. operands: what it reads."""

    __slots__ = ()
    node: Node
    operands: tuple[Operand, ...]
    layout: None
    element: str

    @property
    def own_bytes(self) -> int:
        """What it takes for itself while it runs."""
        return 0

    @property
    def room(self) -> int:
        """All of that."""
        return self.own_bytes

    def is_proven(self) -> bool:
        """It is the kernel that the node has by itself."""
        return True


@dataclass(frozen=True, slots=True)
class ImageClaim(OwnKernelBase):
    """A claim on a node over images with channels last. sizes: as in the row, where it has some."""

    node: Node
    operands: tuple[Operand, ...]
    result: Value
    sizes: tuple[int, ...] = ()
    into: Value | None = None
    layout: None = None
    element: str = "i8"


class ClaimBase(PlacedBase):
    """A claim that depends on a question, of elements of a dtype."""

    __slots__ = ()
    question: Typed

    @property
    def element(self) -> str:
        """The type of its elements, as LLVM names it."""
        return ELEMENTS[self.question.dtype]


def own_bytes_of(claims: Iterable[object]) -> dict[Node, int]:
    """What rows take for themselves while a node runs, by node, of kernels that are dovetail's own."""
    return {claim.node: claim.own_bytes for claim in claims if isinstance(claim, OwnKernelBase)}
