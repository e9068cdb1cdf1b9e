"""What claims of all kinds have in common: see `rows.RowClaim`."""

from __future__ import annotations

from typing import Protocol

import torch

from dovetail.ir.program import Value

ELEMENTS = {torch.float32: "float", torch.float64: "double"}
"""Names of element types in LLVM's text."""


class Typed(Protocol):
    """What a claim asks a probe: about an operator for elements of a dtype."""

    @property
    def dtype(self) -> torch.dtype:
        """Of the elements."""


class PlacedBase:
    """Where the result goes. into, result: see `rows.RowClaim`."""

    __slots__ = ()
    into: Value | None
    result: Value

    @property
    def written(self) -> Value:
        """The value that describes the memory that is written."""
        return self.result if self.into is None else self.into

    @property
    def made(self) -> tuple[Value, ...]:
        """The results that get new memory."""
        return () if self.into is not None else (self.result,)

    @property
    def checked(self) -> tuple[Value, ...]:
        """What a check reads before all rows run."""
        return ()


class ClaimBase(PlacedBase):
    """A claim that depends on a question, of elements of a dtype."""

    __slots__ = ()
    question: Typed

    @property
    def element(self) -> str:
        """The type of its elements, as LLVM names it."""
        return ELEMENTS[self.question.dtype]
