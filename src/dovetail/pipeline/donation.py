"""Which of the inputs that a caller gives away the forward program may work in, and why not in the others.

The program reads an input as it was where it hands it back, or saves it; and an input that receives new contents has
a place for them already. What is offered beyond those may be written once its contents are read for the last time,
which re-inplacing sees to like for any other memory.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch

from dovetail.capture.inputs import StandIn
from dovetail.ir.calling import CallPlan
from dovetail.ir.program import Program
from dovetail.ir.signature import InputMutation, Residual
from dovetail.passes.inplace_report import DonationRow


class Withheld(enum.Enum):
    """Why an input that was given away is left as it is."""

    IS_RETURNED = "it is returned to the caller, or a view of it is"
    IS_SAVED = "backward reads it"
    IS_WRITTEN = "the call writes its new contents there"
    IS_CHANGED = "its shape, strides or flags change"
    IS_REINTERPRETED = "it is read through a conjugate or negative view"
    SHARES = "it was recorded as sharing memory with another input"
    IS_KEPT = "second derivatives are computed from it"

    @property
    def code(self) -> str:
        """The short name that reports use: `IS-SAVED`."""
        return self.name.replace("_", "-")


@dataclass(frozen=True, slots=True)
class DonationReport:
    """offered: numbers of inputs that may be worked in. donations: a row for each of the others."""

    offered: tuple[int, ...]
    donations: tuple[DonationRow, ...] = ()

    def __str__(self) -> str:
        rest = "".join(f"; not {row.name}: {row.because}" for row in self.donations)
        return f"{len(self.offered)} inputs can be overwritten{rest}"


def offer_inputs(
    given: Collection[int],
    halves: tuple[Program, Program],
    plan: CallPlan,
    stand_ins: Sequence[StandIn],
    *,
    keeps_inputs: bool,
) -> DonationReport:
    """The inputs among those given that the forward program may work in.

    halves: forward and backward, functional. keeps_inputs: the call keeps them for second derivatives.
    """
    offered: list[int] = []
    rows: list[DonationRow] = []
    inputs = halves[0].inputs
    for index in sorted(given):
        why = Withheld.IS_KEPT if keeps_inputs else _why_not(index, halves, plan, stand_ins[index].seen)
        if why is None:
            offered.append(index)
        else:
            rows.append(DonationRow(inputs[index].name, why.code, why.value))
    return DonationReport(tuple(offered), tuple(rows))


def _why_not(index: int, halves: tuple[Program, Program], plan: CallPlan, seen: torch.Tensor) -> Withheld | None:
    if index in plan.returned_inputs():
        return Withheld.IS_RETURNED
    if any(write.input == index for write in plan.writes) or index in late_writes(halves[1]):
        return Withheld.IS_WRITTEN
    changed = {change.input for change in plan.metadata} | {flag.input for flag in plan.flags} | set(plan.touched)
    if index in changed:
        return Withheld.IS_CHANGED
    if seen.is_conj() or seen.is_neg():
        return Withheld.IS_REINTERPRETED
    forward = halves[0]
    numbers = [value.tensor.storage for value in forward.inputs if value.is_tensor]
    if numbers.count(forward.inputs[index].tensor.storage) > 1:
        return Withheld.SHARES
    for role, output in zip(forward.signature.outputs, forward.outputs, strict=True):
        if output is forward.inputs[index]:
            return Withheld.IS_SAVED if isinstance(role, Residual) else Withheld.IS_RETURNED
    return None


def late_writes(backward: Program) -> frozenset[int]:
    """Inputs of forward that backward writes."""
    roles = backward.signature.outputs
    return frozenset(role.input for role in roles if isinstance(role, InputMutation) and not role.constant)
