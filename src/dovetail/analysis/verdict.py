"""The answer of overlap analysis: a verdict, the reason, and a condition."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from dovetail.analysis.diophantine import Answer, Step
from dovetail.ir.sizes import SizeExpr


class Verdict(enum.Enum):
    """Whether bytes are shared. UNKNOWN is neither: treat it as sharing, or check the guard."""

    DISJOINT = "disjoint"
    OVERLAPPING = "overlapping"
    UNKNOWN = "unknown"


class Reason(enum.Enum):
    """What decided, or, for an unknown verdict, what stood in the way."""

    DIFFERENT_STORAGES = "different storages"
    EMPTY = "empty"
    INTERVALS = "intervals"
    GCD = "gcd"
    NESTED_STRIDES = "nested strides"
    SEARCH = "search"
    BITSET = "bitset"
    PERIOD = "period"
    SAME_BYTES = "same bytes"
    WORK_LIMIT = "work limit"
    SYMBOLIC = "symbolic"


@dataclass(frozen=True, slots=True)
class Overlap:
    """One answer.

    guard: only with an unknown verdict: a condition on the size symbols that, where it holds, means that no byte is
    shared. It is sufficient, not necessary; None when no such condition was found. `ir.sizes.evaluate` decides it.
    """

    verdict: Verdict
    reason: Reason
    guard: SizeExpr | None = None

    @property
    def may_overlap(self) -> bool:
        """Whether sharing is not ruled out."""
        return self.verdict is not Verdict.DISJOINT

    def __str__(self) -> str:
        text = f"{self.verdict.value} ({self.reason.value})"
        return text if self.guard is None else f"{text}, disjoint if {self.guard}"


_REASONS = {
    Step.INTERVAL: Reason.INTERVALS,
    Step.GCD: Reason.GCD,
    Step.ABSORPTION: Reason.NESTED_STRIDES,
    Step.SEARCH: Reason.SEARCH,
    Step.BITSET: Reason.BITSET,
    Step.WORK_LIMIT: Reason.WORK_LIMIT,
}
_VERDICTS = {False: Verdict.DISJOINT, True: Verdict.OVERLAPPING, None: Verdict.UNKNOWN}
_OVERLAPS = {
    solvable: {step: Overlap(verdict, reason) for step, reason in _REASONS.items()}
    for solvable, verdict in _VERDICTS.items()
}


def overlap_from(answer: Answer) -> Overlap:
    """The answer to "is there a shared byte?" in words of memory."""
    return _OVERLAPS[answer.solvable][answer.step]
