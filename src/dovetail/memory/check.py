"""Prove a placement right, independently of how it was found: a sweep over the times at which buffers come and go.

It shares no code with the solvers. Buffers that go at a time make room for those that come then.
"""

from __future__ import annotations

from bisect import bisect_left, insort

from dovetail.errors import InvalidPlacement
from dovetail.memory.problem import Buffer, Placement, Problem


def verify_placement(problem: Problem, placement: Placement, name: str = "the program") -> None:
    """Raise InvalidPlacement unless each buffer has bytes of its own while it is needed, all within the arena.

    name: what the arena is for.
    """

    def require(condition: bool, rule: str, detail: str) -> None:
        if not condition:
            raise InvalidPlacement(program=name, rule=rule, detail=detail)

    buffers, offsets = problem.buffers, placement.offsets
    require(len(buffers) == len(offsets), "every buffer has an offset", f"{len(offsets)} for {len(buffers)} buffers")
    for buffer, offset in zip(buffers, offsets, strict=True):
        shown = f"{buffer.name} at {offset}"
        require(buffer.size_bytes >= 0 and buffer.start < buffer.end, "a buffer is needed for a while", buffer.name)
        require(offset >= 0 and offset % problem.alignment == 0, "offsets are aligned", shown)
        require(buffer.offset in (None, offset), "fixed offsets stay", shown)
        end = offset + buffer.size_bytes
        require(end <= placement.size_bytes, "buffers lie within the arena", f"{shown} ends at {end}")
    events = [(buffer.end, 0, number) for number, buffer in enumerate(buffers) if buffer.size_bytes]
    events += [(buffer.start, 1, number) for number, buffer in enumerate(buffers) if buffer.size_bytes]
    live: list[tuple[int, int]] = []  # offset and number
    needed = most = 0
    for _, comes, number in sorted(events):
        entry = (offsets[number], number)
        size = -(-buffers[number].size_bytes // problem.alignment) * problem.alignment
        place = bisect_left(live, entry)
        if not comes:
            del live[place]
            needed -= size
            continue
        for _, other in live[max(0, place - 1) : place + 1]:
            apart = _lie_apart(buffers[number], offsets[number], buffers[other], offsets[other])
            names = f"{buffers[other].name} and {buffers[number].name}"
            require(apart, "buffers that are needed at the same time lie apart", names)
        insort(live, entry)
        needed += size
        most = max(most, needed)
    if all(buffer.offset is None for buffer in buffers):
        require(placement.bound_bytes == most, "the bound is what is needed at one time", f"{most} bytes are")
    require(
        placement.bound_bytes <= placement.size_bytes, "no arena is below its bound", f"{placement.size_bytes} bytes"
    )


def _lie_apart(a: Buffer, at: int, b: Buffer, there: int) -> bool:
    return at + a.size_bytes <= there or there + b.size_bytes <= at
