"""A problem in the units in which solvers count, cut into parts that can be solved one by one.

Sizes and offsets are in units of the alignment, or in a larger unit that divides all of them. A *part* is a run of
buffers between two times at which nothing is needed. A *section* is a largest set of buffers that are needed at one
time; others add nothing, as a smaller set lies in one of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from dovetail.memory.problem import Problem, rounded_up


@dataclass(frozen=True, slots=True)
class Items:
    """Some buffers of a problem, by number. sizes, fixed: in units. unit: bytes."""

    numbers: tuple[int, ...]
    sizes: tuple[int, ...]
    starts: tuple[int, ...]
    ends: tuple[int, ...]
    fixed: tuple[int | None, ...]
    unit: int

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def is_free(self) -> bool:
        """Whether each buffer may lie anywhere."""
        return all(offset is None for offset in self.fixed)


def parts_of(problem: Problem) -> list[Items]:
    """The parts of a problem, in order of time. Buffers of no bytes are in none of them."""
    buffers = problem.buffers
    order = sorted((n for n, b in enumerate(buffers) if b.size_bytes), key=lambda n: (buffers[n].start, buffers[n].end))
    runs: list[list[int]] = []
    until = None
    for number in order:
        if until is None or buffers[number].start >= until:
            runs.append([])
            until = buffers[number].end
        runs[-1].append(number)
        until = max(until, buffers[number].end)
    return [_items(problem, run) for run in runs]


def _items(problem: Problem, run: list[int]) -> Items:
    buffers = [problem.buffers[number] for number in run]
    sizes = [rounded_up(buffer.size_bytes, problem.alignment) for buffer in buffers]
    unit = gcd(*sizes, *(buffer.offset or 0 for buffer in buffers))
    return Items(
        tuple(run),
        tuple(size // unit for size in sizes),
        tuple(buffer.start for buffer in buffers),
        tuple(buffer.end for buffer in buffers),
        tuple(None if buffer.offset is None else buffer.offset // unit for buffer in buffers),
        unit,
    )


def sections_of(items: Items) -> list[frozenset[int]]:
    """The sections of a part, in order of time: sets of indices of its items."""
    starting: dict[int, list[int]] = {}
    for index, start in enumerate(items.starts):
        starting.setdefault(start, []).append(index)
    found: list[frozenset[int]] = []
    live: set[int] = set()
    for time in sorted(starting):
        gone = {index for index in live if items.ends[index] <= time}
        if gone and live:  # it cannot grow any more
            found.append(frozenset(live))
            live -= gone
        live.update(starting[time])
    if live:
        found.append(frozenset(live))
    return found
