"""Place buffers one after the other, each in a hole between those placed before that are needed at the same time.

Two families: the lowest hole that is large enough, and the tightest one. The order decides: long-lived buffers first
suits programs of a forward and a backward pass, large ones first suits others; buffers that are needed when most is
needed come first where the arena must be as small as that.

Source: best-fit heuristics for dynamic storage allocation, ordered by size or by lifetime (Pisarchyk and Lee,
"Efficient memory management for deep neural net inference", 2020).
Cost:   O(n^2) for each order, and less where it is given up early.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterator, Sequence

from dovetail.memory.items import Items

Offsets = list[int]


def greedy_placements(items: Items, most: int) -> Iterator[tuple[str, Offsets]]:
    """Placements below a height in units, by name of their order; those that would reach it are given up."""
    for name, order in _orders(items):
        for family, place in (("lowest", _lowest_hole), ("tightest", _tightest_hole)):
            offsets = place_in_order(items, order, most, place)
            if offsets is not None:
                most = height(items, offsets)
                yield f"{name} first, {family} hole", offsets


def height(items: Items, offsets: Sequence[int]) -> int:
    """What a placement needs, in units."""
    return max((offset + size for offset, size in zip(offsets, items.sizes, strict=True)), default=0)


def _orders(items: Items) -> Iterator[tuple[str, list[int]]]:
    sizes = items.sizes
    lifetimes = [end - start for start, end in zip(items.starts, items.ends, strict=True)]
    loads = _loads(items)
    keys: dict[str, Callable[[int], tuple[int, ...]]] = {
        "long-lived": lambda i: (lifetimes[i], sizes[i]),
        "most needed": lambda i: (loads[i], lifetimes[i], sizes[i]),
        "largest area": lambda i: (sizes[i] * lifetimes[i], sizes[i]),
        "largest": lambda i: (sizes[i], lifetimes[i]),
        "most needed and largest": lambda i: (loads[i], sizes[i]),
    }
    for name, key in keys.items():
        yield name, sorted(range(len(items)), key=key, reverse=True)


def _loads(items: Items) -> list[int]:
    """For each item, the most that is needed at once while it is."""
    changes: dict[int, int] = {}
    for start, end, size in zip(items.starts, items.ends, items.sizes, strict=True):
        changes[start] = changes.get(start, 0) + size
        changes[end] = changes.get(end, 0) - size
    times = sorted(changes)
    place = {time: at for at, time in enumerate(times)}
    loads, live = [], 0
    for time in times:
        live += changes[time]
        loads.append(live)
    return [max(loads[place[start] : place[end]]) for start, end in zip(items.starts, items.ends, strict=True)]


_Placed = tuple[int, int, int, int]  # bottom, top, start, end
_Hole = Callable[[list[_Placed], int, int, int, int], int]


def place_in_order(items: Items, order: Sequence[int], most: int, place: _Hole | None = None) -> Offsets | None:
    """Offsets in units; None if they would reach a height of `most` or more, or fixed ones are in each other's way.

    place: which hole is taken; the lowest by default.
    """
    hole = place or _lowest_hole
    offsets: list[int] = [0] * len(items)
    placed: list[_Placed] = []
    for index in sorted(order, key=lambda i: items.fixed[i] is None):  # fixed ones first
        start, end, size, fixed = items.starts[index], items.ends[index], items.sizes[index], items.fixed[index]
        if fixed is None:
            offset = hole(placed, start, end, size, most)
        else:
            offset = fixed
            if any(o < fixed + size and fixed < top and s < end and start < e for o, top, s, e in placed):
                return None
        if offset + size >= most:
            return None
        offsets[index] = offset
        insort(placed, (offset, offset + size, start, end))
    return offsets


def _lowest_hole(placed: list[_Placed], start: int, end: int, size: int, most: int) -> int:
    free = 0
    for bottom, top, first, last in placed:
        if top > free and first < end and start < last:
            if bottom - free >= size:
                break
            free = top
    return free


def _tightest_hole(placed: list[_Placed], start: int, end: int, size: int, most: int) -> int:
    free, best, room = 0, -1, most
    for bottom, top, first, last in placed:
        if top > free and first < end and start < last:
            if size <= bottom - free < room:
                best, room = free, bottom - free
            free = top
    return free if best < 0 else best
