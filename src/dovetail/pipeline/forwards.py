"""Which split a graph gets under a limit, where the backward that the limit is for is not the one it is split for.

A graph that returns a loss among other things is split for gradients of all of them, as eager saves for all. What runs
is the backward of the loss. So each split has two peaks, and there is a fixed row of splits, whatever the limit.

| the limit | the split |
|---|---|
| above both peaks of one | of those, the one with the least work |
| lower, above the peak of the loss alone | of those, the one with the least work |
| lower | the first whose backward of the loss can be planned under it, from the lowest peak on |

Left out is what has a higher peak of the loss than the split with the least work, and then what has a lower one than a
split for a lower limit, so that none of the peaks rises as the limit falls. The split with the least work is taken
wherever it fits.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from dovetail.partition.policy import Policy
from dovetail.partition.whole.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Way:
    """A way to split a graph.

    peak_bytes: with gradients of all results. loss_bytes: with that of the loss alone. forward_bytes: until
    backward begins. work: of all its nodes. solver: who found it. schedule: of the whole program, and what it was found
    with, if it is one of those.
    """

    peak_bytes: int
    loss_bytes: int
    forward_bytes: int
    work: int
    solver: str
    schedule: Schedule | None = None
    policy: Policy | None = None

    @property
    def both_bytes(self) -> int:
        """The higher one of its peaks."""
        return max(self.peak_bytes, self.loss_bytes)


def way_within(ways: Collection[Way], most: int) -> Way | None:
    """The way for a limit of so many bytes; None where no backward of the loss keeps it as it is."""
    row = _row(ways)
    fitting = [way for way in row if way.both_bytes <= most]
    if fitting:
        return fitting[-1]
    alone = [way for way in ways if way.loss_bytes <= min(most, row[0].loss_bytes)]
    return min(alone, key=lambda way: (way.work, way.loss_bytes), default=None)


def _row(ways: Collection[Way]) -> list[Way]:
    """Ways of which each needs less work than the one before it, and no peak is lower."""
    plain = min(ways, key=lambda way: (way.work, way.loss_bytes))
    some = [way for way in ways if way.loss_bytes <= plain.loss_bytes]
    lowest, *others = sorted(some, key=lambda way: (way.both_bytes, way.loss_bytes, way.work))
    row = [lowest]
    for way in others:
        if way.work >= row[-1].work or way.loss_bytes < lowest.loss_bytes:
            continue
        while row[-1].loss_bytes > way.loss_bytes:
            row.pop()
        row.append(way)
    return row
