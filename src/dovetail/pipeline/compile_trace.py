"""What every step of a compilation made, kept in memory: what `dovetail.explain` reads.

A `CompileTrace` is handed down in the options. Each lowering of the recorded program (one for each pattern of arriving
gradients) is a `Lowering` with its steps in order; programs never change, so keeping them costs no copy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dovetail.ir.program import Program
from dovetail.ir.sizes import Number

LIKELY = "_likely"
"""Ends the name of a lowering for the gradients that arrive most often, which follows the one for all of them."""

STEP_STATE = "write_state"
"""The step in which the program of a whole training step writes its state."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step. program: what it made. record: a dataclass that says what it did, None if there is nothing to say."""

    name: str
    program: Program
    record: object = None


@dataclass(slots=True)
class Lowering:
    """The way of one recorded program to its two halves.

    hints: a number for each size symbol. leaves: numbers of the inputs that are leaves of autograd's graph. sources:
    names of the residuals that values are computed again from.
    """

    name: str
    hints: Mapping[str, Number]
    steps: list[Step] = field(default_factory=list)
    leaves: frozenset[int] = frozenset()
    sources: frozenset[str] = frozenset()

    def half(self, which: str) -> Program | None:
        """The newest program of a half, "forward" or "backward"; None when the split has not been reached."""
        name = f"{self.name}_{which}"
        return next((step.program for step in reversed(self.steps) if step.program.name == name), None)

    @property
    def is_complete(self) -> bool:
        """Whether both halves were made: a recording that is refused leaves steps behind as well."""
        return self.half("forward") is not None and self.half("backward") is not None

    @property
    def is_step(self) -> bool:
        """Whether it is a whole training step, lowered as far as its state is written: one program, no halves."""
        return any(step.name == STEP_STATE for step in self.steps)


class CompileTrace:
    """Collects the steps of every program that is compiled with it, oldest first."""

    def __init__(self) -> None:
        self.lowerings: list[Lowering] = []

    def begin(self, name: str, hints: Mapping[str, Number], leaves: frozenset[int] = frozenset()) -> Lowering:
        """A new lowering, to which steps are added."""
        self.lowerings.append(Lowering(name, hints, leaves=leaves))
        return self.lowerings[-1]
