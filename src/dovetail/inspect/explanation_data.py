"""The decisions for one call, as plain data: steps, nodes, lifetimes, saved values and copies.

All bytes are those of the simulation that the passes decide by (`analysis.liveness`): memory of inputs and scratch
memory inside operators are not in them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dovetail.inspect.report_rows import CallMemory, Decision, EagerMemory, MemoryMap, ProgramReport, StepRow
from dovetail.inspect.step_time import StepTime
from dovetail.pipeline.peak_account import MemoryAccount


@dataclass(frozen=True, slots=True)
class ExplanationData:
    """The fields of an `Explanation`, which describes them."""

    name: str
    programs: tuple[ProgramReport, ...]
    step: MemoryMap
    steps: tuple[StepRow, ...]
    decisions: tuple[Decision, ...]
    lines: Mapping[str, str]
    eager: EagerMemory | None = None
    time: StepTime | None = None
    call: CallMemory | None = None
    memory: MemoryAccount | None = None

    @property
    def peak_bytes(self) -> int:
        """Predicted peak of the whole step, without its inputs."""
        return self.step.peak_bytes

    @property
    def eager_peak_bytes(self) -> int:
        """The simulated peak of the program as it was recorded, which is what eager runs; -1 where it is not known."""
        return -1 if self.eager is None else self.eager.peak_bytes
