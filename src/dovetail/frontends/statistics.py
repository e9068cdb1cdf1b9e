"""What a compiled function or step has done so far."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class VariantStats:
    """One program. reason: why it was captured. guard_misses: how often a question got another answer while it ran.

    is_once: it has run in one call, which made what later calls find; another program is for those.
    """

    reason: str
    calls: int
    guard_misses: int = 0
    is_once: bool = False


@dataclass(frozen=True, slots=True)
class Stats:
    """calls: all of them. eager_calls: those that ran in eager mode. captures: recordings.

    misses: calls that were looked at, and fitted no program that there was. guard_misses: programs that were given up
    before their first write. variants: oldest first. seconds: spent capturing and compiling, by the clock of the
    process; of functions, backward passes left out. eager_reasons: why calls of a step ran in eager mode, each once.
    """

    calls: int
    eager_calls: int
    captures: int
    misses: int
    guard_misses: int
    variants: tuple[VariantStats, ...]
    seconds: float
    eager_reasons: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [
            f"{self.calls} calls, {self.eager_calls} in eager mode; {self.captures} captures in {self.seconds:.2f} s; "
            f"{self.guard_misses} guard misses"
        ]
        for number, variant in enumerate(self.variants):
            misses = f", {variant.guard_misses} misses" if variant.guard_misses else ""
            lines.append(f"  variant {number}: {variant.calls} calls{misses}: {variant.reason}")
        lines += [f"  in eager mode: {reason}" for reason in self.eager_reasons]
        return "\n".join(lines)


@dataclass(slots=True)
class Counts:
    """The counters behind `Stats`, while they count."""

    calls: int = 0
    eager_calls: int = 0
    captures: int = 0
    misses: int = 0
    guard_misses: int = 0
    seconds: float = 0.0
    eager_reasons: dict[str, None] = field(default_factory=dict)

    def stats(self, variants: Iterable[VariantStats]) -> Stats:
        """What was counted until now."""
        counted = (self.calls, self.eager_calls, self.captures, self.misses, self.guard_misses)
        return Stats(*counted, tuple(variants), self.seconds, tuple(self.eager_reasons))
