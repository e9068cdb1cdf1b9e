"""What forward may save under a limit, where the backward that the limit is for is made later than forward.

A graph that returns a loss among other things is split for gradients of all of them, as eager saves for all. What runs
is the backward of the loss, which gets a plan of its own after that. So there is a fixed row of splits, whatever the
limit, from the highest peak to the lowest. The first one is taken that keeps the limit, and whose later backward keeps
it; where there is none, the last one whose later backward does. A higher limit can do with all that a lower one can.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dovetail.errors import MemoryLimitTooLow
from dovetail.partition.policy import Policy
from dovetail.partition.whole.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Way:
    """A way to split a graph. work: of all its nodes. solver: who found it. schedule: of the whole program, and what it
    was found with, if it is one of those.
    """

    peak_bytes: int
    work: int
    solver: str
    schedule: Schedule | None = None
    policy: Policy | None = None


class Forwards:
    """ways: those of one graph, none as long as they are not asked for."""

    def __init__(self) -> None:
        self.ways: tuple[Way, ...] = ()
        self._order: list[int] = []
        self._lowest: tuple[int, MemoryLimitTooLow] | None = None

    def begin(self, ways: Iterable[Way], most: int) -> None:
        """Take the ways that are worth it, to be tried in order. most: bytes that their peak is to keep to."""
        best: list[Way] = []
        for way in sorted(ways, key=lambda way: (way.peak_bytes, way.work)):
            if not best or way.work < best[-1].work:
                best.append(way)
        self.ways = tuple(reversed(best))
        fitting = [place for place, way in enumerate(self.ways) if way.peak_bytes <= most]
        others = [place for place, way in enumerate(self.ways) if way.peak_bytes > most]
        self._order = [*fitting, *reversed(others)]

    @property
    def way(self) -> Way:
        """The one that is tried now."""
        return self.ways[self._order[0]]

    def goes_on(self, error: MemoryLimitTooLow) -> bool:
        """Whether there is another one to try, after this error."""
        floor = error.facts["floor_bytes"]
        assert isinstance(floor, int), "a number of bytes"
        if self._lowest is None or floor < self._lowest[0]:
            self._lowest = (floor, error)
        self._order = self._order[1:]
        return bool(self._order)

    def refusal(self, error: MemoryLimitTooLow) -> MemoryLimitTooLow:
        """The error with the lowest peak of all that were tried. error: the last one."""
        return error if self._lowest is None else self._lowest[1]
