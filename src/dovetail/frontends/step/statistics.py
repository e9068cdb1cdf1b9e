"""What a compiled step has done so far."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class VariantStats:
    """One program. reason: why it was captured. guard_misses: how often a question got another answer while it ran."""

    reason: str
    calls: int
    guard_misses: int


@dataclass(frozen=True, slots=True)
class StepStats:
    """calls: of the step. eager_calls: those that ran in eager mode, the first one included. captures: recordings.

    guard_misses: programs that were given up before their first write. variants: oldest first. seconds: spent capturing
    and compiling, by the clock of the process.
    """

    calls: int
    eager_calls: int
    captures: int
    guard_misses: int
    variants: tuple[VariantStats, ...]
    seconds: float

    def __str__(self) -> str:
        lines = [
            f"{self.calls} calls, {self.eager_calls} in eager mode; {self.captures} captures in {self.seconds:.2f} s; "
            f"{self.guard_misses} guard misses"
        ]
        for number, variant in enumerate(self.variants):
            misses = f", {variant.guard_misses} misses" if variant.guard_misses else ""
            lines.append(f"  variant {number}: {variant.calls} calls{misses}: {variant.reason}")
        return "\n".join(lines)
