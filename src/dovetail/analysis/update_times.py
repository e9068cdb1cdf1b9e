"""When updates should run, if running them as early as possible needs more memory than later.

An update that runs at once frees a gradient, and needs room for what it computes meanwhile; when most is alive, that
may be more than there is. From a program that works in place, with every update as early as possible, follow for each
update the bytes that it *needs* beyond what is alive and the bytes that it *frees*. A limit can be kept if each update
that runs as soon as it fits does fit at some time; the least limit that can be kept is found by halving.

Cost: O(nodes) for each of a dozen limits.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping
from dataclasses import dataclass

from dovetail.analysis.liveness import storage_lives
from dovetail.analysis.updates import UpdateGroup, Updates
from dovetail.ir.program import Node, Program

_LIMITS = 12
_NO_GROUP = UpdateGroup((), -1, 0)


@dataclass(frozen=True, slots=True)
class _Block:
    """A group that runs at once. need: bytes beyond those alive before it. freed: fewer bytes alive after it."""

    group: UpdateGroup
    need: int
    freed: int


@dataclass(frozen=True, slots=True)
class _Moment:
    """A node of the frame. during, after: bytes alive, if no update waits. then: updates that can run after it."""

    position: int
    during: int
    after: int
    then: tuple[_Block, ...]


def times_that_need_less(program: Program, updates: Updates, early: Program) -> dict[UpdateGroup, int] | None:
    """For each group, the position of the node of the frame after which it should run; None if that is no use.

    early: the program with every group as early as possible, once it works in place. What is found is an estimate: the
    program may be able to work in place otherwise in another order.
    """
    moments = _moments(program, updates, early)
    frame = max((moment.during for moment in moments), default=0)
    peak = max([frame, *_peaks(moments)])
    best: dict[UpdateGroup, int] | None = None
    low, high = frame, peak
    for _ in range(_LIMITS):
        if high - low <= peak // 200:
            break
        limit = (low + high) // 2 if best is not None or low > frame else low
        found = _within(moments, limit)
        if found is None:
            low = max(limit, low + 1)
        else:
            best, high = found, limit
    if best is None:
        return None
    return {group: max(group.ready, best.get(group, group.ready)) for group in updates.groups}


def _peaks(moments: list[_Moment]) -> list[int]:
    """The most bytes alive in each update, where none waits."""
    found: list[int] = []
    for moment in moments:
        alive = moment.after + sum(block.freed for block in moment.then)
        for block in moment.then:
            found.append(alive + block.need)
            alive -= block.freed
    return found


def _within(moments: list[_Moment], limit: int) -> dict[UpdateGroup, int] | None:
    """When updates run if each runs as soon as it fits under a limit; None if one never does."""
    times: dict[UpdateGroup, int] = {}
    waiting: list[tuple[int, int, _Block]] = []
    held = serial = 0
    for moment in moments:
        if moment.during + held > limit:
            return None
        for block in moment.then:
            serial += 1
            insort(waiting, (block.need, serial, block))
            held += block.freed
        while waiting and moment.after + held + waiting[0][0] <= limit:
            _, _, block = waiting.pop(0)
            held -= block.freed
            times[block.group] = moment.position
    return None if waiting else times


def _moments(program: Program, updates: Updates, early: Program) -> list[_Moment]:
    """The nodes of the frame, as they work in place, with the updates between them."""
    groups: dict[str, UpdateGroup | None] = {v.name: None for node in updates.arithmetic for v in node.results()}
    groups.update((v.name, group) for group in updates.groups for node in group.nodes for v in node.results())
    positions = {v.name: at for at, node in enumerate(program.nodes) for v in node.results() if v.name not in groups}
    during, between = _alive(early)
    moments: list[_Moment] = []
    at, position = 0, -1
    while at < len(early.nodes):
        names = [value.name for value in early.nodes[at].results()]
        position = max([position, *(positions[name] for name in names if name in positions)])
        start = at = at + 1
        blocks: list[_Block] = []
        while at < len(early.nodes) and (group := _group_of(early.nodes[at], groups)) is not None:
            first = at
            while at < len(early.nodes) and _is_part(early.nodes[at], group, groups):
                at += 1
            need = max(during[first:at]) - between[first]
            blocks.append(_Block(group, need, between[first] - between[at]))
        moments.append(_Moment(position, during[start - 1], between[at], tuple(blocks)))
    return moments


def _group_of(node: Node, groups: Mapping[str, UpdateGroup | None]) -> UpdateGroup | None:
    return next((group for v in node.results() if (group := groups.get(v.name)) is not None), None)


def _is_part(node: Node, group: UpdateGroup, groups: Mapping[str, UpdateGroup | None]) -> bool:
    """Whether a node belongs to a group, or makes numbers that it needs."""
    results = node.results()
    return bool(results) and all(groups.get(value.name, _NO_GROUP) in (group, None) for value in results)


def _alive(program: Program) -> tuple[list[int], list[int]]:
    """Bytes alive while each node runs, and before each node (and after the last)."""
    count = len(program.nodes)
    during, between = [0] * (count + 1), [0] * (count + 2)
    for life in storage_lives(program):
        during[life.first] += life.bytes
        during[life.last + 1] -= life.bytes
        last = count if life.is_returned else life.last
        if last > life.first:
            between[life.first + 1] += life.bytes
            between[last + 1] -= life.bytes
    for at in range(1, count + 1):
        during[at] += during[at - 1]
        between[at] += between[at - 1]
    return during[:count], between[: count + 1]
