"""Pointwise nodes where results may differ by rounding: functions that are part of the loop, instead of calls of MKL,
Sleef and C's library, so that elements are the same wherever they stand.

What a formula becomes is tried beside the operator as well: results are near, and infinities and NaN are the same.
Where they are not, the formula with eager's bits is taken, if there is one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch

from dovetail.execute.native.claims import Claim, claim_of
from dovetail.execute.native.formula import (
    Formula,
    constant,
    is_by_place,
    root,
)
from dovetail.execute.native.own_functions import erf, exp, expm1, log, log1p, tanh
from dovetail.execute.native.probes import Question, agrees
from dovetail.execute.native.trials import answered
from dovetail.ir.program import Node

_NEAR, _NEAR_ZERO = 2e-5, 5e-6


def _inside_tanh(formula: Formula) -> Formula | None:
    """What the hyperbolic tangent is taken of; None for another formula."""
    if is_by_place(formula):
        return _inside_tanh(formula.parts[2])
    return formula.parts[0] if _function_of(formula) == "tanh" else None


def _function_of(formula: Formula) -> str:
    """The name of a vector function, whoever has it; "" for another formula."""
    library, _, name = formula.operation.partition(" ")
    return name.removeprefix("sleef ").lower() if library == "vector" else ""


_ONE, _TWO = constant(1.0), constant(2.0)
_OWN = {"exp": exp, "tanh": tanh, "erf": erf, "sqrt": root, "ln": log, "log1p": log1p, "expm1": expm1}


@lru_cache(maxsize=1024)
def in_the_loop(formula: Formula) -> Formula:
    """The formula with functions that are part of the loop, the same for all places."""
    if is_by_place(formula):
        return in_the_loop(formula.parts[2])
    parts = tuple(map(in_the_loop, formula.parts))
    if formula.operation == "add" and parts[0] == _ONE and (inner := _inside_tanh(formula.parts[1])) is not None:
        return _TWO / (_ONE + exp(in_the_loop(inner) * -_TWO))  # 1 + tanh(u), without cancellation
    own = _OWN.get(_function_of(formula))
    if own is not None:
        return own(*parts)
    return Formula(formula.operation, parts, formula.place, formula.number) if parts else formula


@dataclass(frozen=True, slots=True)
class NearQuestion:
    """Whether a formula gives nearly what an operator does."""

    question: Question
    formula: Formula


@dataclass(frozen=True, slots=True)
class RoundingClaim(Claim):
    """A claim with a formula that may differ from the operator by rounding."""

    def is_proven(self) -> bool:
        """Whether there is a formula."""
        return self._near() is not None or Claim.is_proven(self)

    def formula(self) -> Formula | None:
        """The one of the loop, or that with the operator's bits."""
        return self._near() or Claim.formula(self)

    def _near(self) -> Formula | None:
        question = self.question
        formula = in_the_loop(question.candidates[0])
        near = answered(NearQuestion(question, formula), question.target, lambda: agrees(question, formula, _is_near))
        return formula if near else None


def rounding_claim(node: Node) -> RoundingClaim | None:
    """The claim on a node, as far as descriptions say; None where its formula calls nothing."""
    found = claim_of(node)
    if found is None or found.question.dtype is not torch.float32:
        return None
    formula = found.question.candidates[0]
    if in_the_loop(formula) == formula:
        return None
    return RoundingClaim(
        found.node,
        found.question,
        found.operands,
        found.hows,
        found.into,
        found.result,
        found.layout,
        found.grid,
    )


def _is_near(found: torch.Tensor, wanted: torch.Tensor, gradient: torch.Tensor | None) -> bool:
    """gradient: the operand that the result is in proportion to, if there is one."""
    if found.dtype != wanted.dtype or found.shape != wanted.shape:
        return False
    is_better = wanted.isnan() & found.isinf()  # GELU of infinity, of which some of torch's kernels make NaN
    is_better |= wanted.isinf() & (found.abs() > torch.finfo(found.dtype).max / 4)  # and infinity of large numbers
    found = found.where(~is_better, wanted)
    ends = ~(found.isfinite() & wanted.isfinite())
    size = 1.0 if gradient is None else gradient.abs().clamp(1.0, torch.finfo(gradient.dtype).max)
    is_close = (found - wanted).abs() <= _NEAR * wanted.abs() + _NEAR_ZERO * size
    is_same = (found == wanted) | (found.isnan() & wanted.isnan())
    return bool(torch.where(ends, is_same, is_close).all())
