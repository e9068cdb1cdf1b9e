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


class Writing(Protocol):
    """A claim that gives a result."""

    @property
    def into(self) -> Value | None:
        """See `rows.RowClaim`."""

    @property
    def result(self) -> Value:
        """See `rows.RowClaim`."""


def written_by(claim: Writing) -> Value:
    """The value that describes the memory that a claim writes."""
    return claim.result if claim.into is None else claim.into


class ClaimBase:
    """Where the result goes. question: what decides whether the claim holds. into, result: see `rows.RowClaim`."""

    __slots__ = ()
    question: Typed
    into: Value | None
    result: Value

    @property
    def written(self) -> Value:
        """The value that describes the memory that is written."""
        return written_by(self)

    @property
    def element(self) -> str:
        """The type of its elements, as LLVM names it."""
        return ELEMENTS[self.question.dtype]
