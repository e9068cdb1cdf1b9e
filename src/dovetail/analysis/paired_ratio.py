"""How much slower or faster one program is than another, from alternating timings.

Timings taken one after the other compare two moments of a machine as much as two programs. If they alternate, other
load on the machine affects both alike: the ratio of each pair counts, and the median of the ratios is robust.

Source: the interval for a median by order statistics: Hahn and Meeker, "Statistical Intervals" (1991), chapter 5.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

_CONFIDENCE = 0.95
_SMALLEST_SAMPLE = 6  # the largest interval of fewer pairs holds the median with less than 95 %
_TELLING = 0.03


@dataclass(frozen=True, slots=True)
class PairedRatio:
    """The ratio of two timings.

    Attributes:
        median: of the ratios of all pairs.
        low, high: an interval that holds the true median with a confidence of 95 %; from 0 to infinity for fewer than
            six pairs.
        pairs: how many there are.
    """

    median: float
    low: float
    high: float
    pairs: int

    @property
    def spread(self) -> str:
        """The interval in words."""
        if math.isinf(self.high):
            return f"{self.pairs} pairs, too few for an interval"
        return f"{self.low:.2f} to {self.high:.2f}, {self.pairs} pairs"

    @property
    def is_telling(self) -> bool:
        """Whether the interval reaches no further than 3 % from the median."""
        return max(self.high - self.median, self.median - self.low) <= _TELLING * self.median


def paired_ratio(times: Sequence[float], references: Sequence[float]) -> PairedRatio:
    """The ratio of `times` to `references`, pair by pair.

    Args:
        times, references: positive, in one unit, of equal length, at least one; those of one place were taken next to
            each other.
    """
    ratios = sorted(time / reference for time, reference in zip(times, references, strict=True))
    rank = _interval_rank(len(ratios))
    low, high = (ratios[rank], ratios[-1 - rank]) if rank >= 0 else (0.0, math.inf)
    return PairedRatio(statistics.median(ratios), low, high, len(ratios))


def _interval_rank(count: int) -> int:
    """How many pairs may be left out at either end so that the rest holds the median; -1 where there are too few."""
    if count < _SMALLEST_SAMPLE:
        return -1
    rank, outside = 0, 0.5**count
    while True:
        outside += math.comb(count, rank + 1) * 0.5**count
        if 2 * outside > 1 - _CONFIDENCE:
            return rank
        rank += 1
