"""Place the buffers of a problem in an arena that is as small as can be found.

Parts that share no time are placed one by one, and none needs to be smaller than the largest of their bounds. Greedy
families are asked first. Where they miss the bound, the search is asked for it.
"""

from __future__ import annotations

from dataclasses import dataclass

from dovetail.errors import InvalidPlacement
from dovetail.memory.greedy import greedy_placements, height
from dovetail.memory.items import Items, parts_of
from dovetail.memory.problem import Placement, Problem
from dovetail.memory.search import search

DECISIONS = 20_000
"""How many decisions of the search one program is worth. One takes microseconds for each buffer of its part."""


@dataclass(slots=True)
class _Effort:
    """decisions: that are left. names: of what found a part that decides the size, with its size in bytes."""

    decisions: int
    found: list[tuple[int, str]]


def solve(problem: Problem, capacity_bytes: int | None = None, decisions: int = DECISIONS) -> Placement:
    """A placement, as small as was found. The same for the same problem, wherever it is solved.

    Buffers with fixed offsets are placed by the greedy families alone. A part is searched for its bound first, and for
    one unit more where that was refuted; what was not decided leaves the greedy answer.

    capacity_bytes: what is small enough, the bound by default. decisions: of the search, for all parts together.
    Raises: InvalidPlacement where fixed offsets cannot be kept.
    """
    bound = problem.bound_bytes
    enough = max(bound, capacity_bytes or 0)
    effort = _Effort(decisions, [])
    offsets = [0] * len(problem.buffers)
    for part in sorted(parts_of(problem), key=_load, reverse=True):
        placed = _solve_part(part, enough // part.unit, effort)
        for number, offset in zip(part.numbers, placed, strict=True):
            offsets[number] = offset * part.unit
        enough = max(enough, height(part, placed) * part.unit)
    size, by = max(effort.found, default=(0, "nothing to place"))
    return Placement(tuple(offsets), size, bound, by)


def _load(part: Items) -> int:
    return sum(size * (end - start) for size, start, end in zip(part.sizes, part.starts, part.ends, strict=True))


def _solve_part(part: Items, enough: int, effort: _Effort) -> list[int]:
    """Offsets in units, below a height that is enough if that was found."""
    best: list[int] | None = None
    by = ""
    for name, offsets in greedy_placements(part, 1 << 62):
        best, by = offsets, name
        if height(part, offsets) <= enough:
            break
    if best is None:  # everything else finds room above
        rule = "buffers that are needed at the same time lie apart"
        raise InvalidPlacement(program="the problem", rule=rule, detail="fixed offsets are in each other's way")
    least, most = enough, height(part, best)
    while most > least and part.is_free and effort.decisions > 0:
        answer = search(part, least, effort.decisions)
        effort.decisions -= answer.decisions
        if answer.offsets is not None:
            best, by = answer.offsets, f"search, {answer.decisions} decisions"
            break
        if not answer.is_proved:
            break
        least += 1  # in units: no placement is that small
    effort.found.append((height(part, best) * part.unit, by))
    return best
