"""Which of many views overlap: the finest partition that no shared byte crosses.

    x = torch.zeros(4, 6)
    overlap_groups([x[:, :3], x[:, 2:5], x[:, 5]])   ->   [[0, 1], [2]]

Pairs are compared only where they have to be. The views of one memory are split where their intervals of addresses
part; what is left interleaved is split by the place within a period (columns of one matrix lie apart modulo the row
length); both in turn, so that the tiles of a matrix come apart as well. Views that stay together are compared with the
largest of them and with their neighbours, because views that are tied already need no second proof. What is left then
is decided by a sweep over all runs of bytes, or by the pairs that meet in the splitting that leaves the fewest,
whichever costs less.

Cost: O(n log n) where the splitting separates all views, which it does for slices, columns, tiles and any mixture of
them with views of the whole; elsewhere O(r log r) for r runs of bytes, or `overlap`'s cost for each pair. After
`GROUP_WORK_US` the pairs that are left count as overlapping, so that the answer may be coarser than needed, but never
wrong.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from math import prod
from typing import TypeAlias

from dovetail.analysis.diophantine import Budget
from dovetail.analysis.footprint import Footprint, footprint_of, meet
from dovetail.analysis.pairs import overlap_of_regions
from dovetail.analysis.region import Region, RegionLike, region_of
from dovetail.analysis.union_find import UnionFind

# Work after which undecided pairs are joined, in microseconds, roughly.
GROUP_WORK_US = 4_000_000

_PAIR_COST = 4.0
_SKIP_COST = 0.1
_SPLIT_COST = 0.5
_SYMBOLIC_COST = 300.0
_RUN_COST = 1.0
_MAX_PERIODS = 6
_FEW = 6
_NEIGHBOURS = 2

# Index of the view, and its bytes.
_Member: TypeAlias = tuple[int, Footprint]
# A half-open interval, and the member that it belongs to.
_Piece: TypeAlias = tuple[int, int, _Member]


def overlap_groups(places: Sequence[RegionLike]) -> list[list[int]]:
    """Partition places so that two of different groups share no byte.

    Args:
        places: tensors, `TensorMeta`s of one program, or `Region`s; see `overlap`.

    Returns:
        Groups of indices into `places`: the transitive closure of "may overlap". A place that overlaps no other is a
        group of its own, so is an empty one. Groups are ordered by their first member, members ascend.

    Raises: as `overlap`.
    """
    groups = UnionFind(len(places))
    known: dict[Hashable, dict[Footprint, int]] = {}
    symbolic: dict[Hashable, list[tuple[int, Region]]] = {}
    regions = [region_of(place) for place in places]
    for index, region in enumerate(regions):
        footprint = footprint_of(region)
        if footprint is None:
            symbolic.setdefault(region.storage, []).append((index, region))
        elif footprint.run:
            first = known.setdefault(region.storage, {}).setdefault(footprint, index)
            groups.join(first, index)
    budget = Budget(GROUP_WORK_US)
    for members in known.values():
        _tie([(index, footprint) for footprint, index in members.items()], groups, budget)
    for storage, unknowns in symbolic.items():
        others = [(index, regions[index]) for index in known.get(storage, {}).values()]
        _tie_symbolic(unknowns, others, groups, budget)
    return groups.sets()


def _tie_symbolic(
    unknowns: list[tuple[int, Region]], others: list[tuple[int, Region]], groups: UnionFind, budget: Budget
) -> None:
    for place, (index, region) in enumerate(unknowns):
        for other, other_region in (*others, *unknowns[:place]):
            if groups.find(index) == groups.find(other):
                continue
            budget.left -= _SYMBOLIC_COST
            if budget.left < 0 or overlap_of_regions(region, other_region, budget=budget).may_overlap:
                groups.join(index, other)


def _tie(members: list[_Member], groups: UnionFind, budget: Budget) -> None:
    """Join the groups of members that share bytes; all lie in one memory, no two are equal."""
    pending = [members]
    while pending:
        members = pending.pop()
        if len(members) < 2:
            continue
        budget.left -= _SPLIT_COST * len(members)
        if budget.left < 0:
            _join_all(members, groups)
            continue
        splittings = [_by_address(members)]
        parts = _parts(splittings[0])
        if len(parts) == 1 and len(members) > _FEW:
            for period in _periods(members):
                budget.left -= _SPLIT_COST * len(members)
                splittings.append(_by_residue(members, period))
                parts = _parts(splittings[-1])
                if len(parts) > 1:
                    break
        if len(parts) > 1:
            pending += parts
        else:
            _tie_together(members, min(splittings, key=_pair_count), groups, budget)


# --- splitting ------------------------------------------------------------------------------------------------------


def _by_address(members: list[_Member]) -> list[_Piece]:
    """Each member's interval of addresses, sorted."""
    return sorted([(m[1].start, m[1].end, m) for m in members], key=_piece_key)


def _by_residue(members: list[_Member], period: int) -> list[_Piece]:
    """Each member's interval of places within the period, sorted; two pieces where it goes on in the next period.

    A place is an address modulo the period. Members meet only if pieces of theirs do: strides that are multiples of the
    period do not move the place, and all else that a member reaches is within its piece.
    """
    pieces: list[_Piece] = []
    for member in members:
        start, _, terms, length = member[1]
        for step, count in terms:
            if step % period:
                length += step * count
        start %= period
        if length >= period:
            pieces.append((-period, 2 * period, member))
            continue
        pieces.append((start, start + length, member))
        if start + length > period:
            pieces.append((start - period, start + length - period, member))
    pieces.sort(key=_piece_key)
    return pieces


def _piece_key(piece: _Piece) -> tuple[int, int]:
    return piece[0], piece[1]


def _parts(pieces: list[_Piece]) -> list[list[_Member]]:
    """Members in parts such that pieces of different parts do not meet."""
    parts: list[dict[int, _Member]] = []
    first_part: dict[int, int] = {}
    merged: dict[int, int] = {}
    end = pieces[0][0]
    for start, piece_end, member in pieces:
        if start >= end:
            parts.append({})
            end = piece_end
        elif piece_end > end:
            end = piece_end
        index = member[0]
        parts[-1][index] = member
        here = len(parts) - 1
        if first_part.setdefault(index, here) != here:
            merged[here] = first_part[index]
    # Only members with two pieces tie parts. One lies at the start, one at the end: the last part joins the first.
    for later, earlier in merged.items():
        parts[earlier] |= parts[later]
        parts[later] = {}
    return [list(part.values()) for part in parts if part]


def _periods(members: list[_Member]) -> Iterator[int]:
    """Strides that could separate the members, the most frequent first."""
    counts = Counter(step for _, footprint in members for step, _ in footprint.terms)
    ordered = sorted(counts.items(), key=lambda item: (-item[1], -item[0]))
    return (step for step, _ in ordered[:_MAX_PERIODS])


def _pair_count(pieces: list[_Piece]) -> int:
    """How many pairs of pieces meet."""
    starts = [piece[0] for piece in pieces]
    return sum(bisect_left(starts, piece[1]) - place - 1 for place, piece in enumerate(pieces))


# --- members that stay together ---------------------------------------------------------------------------------------


def _tie_together(members: list[_Member], pieces: list[_Piece], groups: UnionFind, budget: Budget) -> None:
    """Join members that no splitting parts: by likely pairs, then by all runs of bytes or all pairs."""
    _tie_pairs(_likely_pairs(members, pieces), members, groups, budget)
    if _count_groups(members, groups) == 1:
        return
    runs = sum(prod([count + 1 for _, count in footprint.terms]) for _, footprint in members)
    if runs * _RUN_COST < min(budget.left, _pair_count(pieces) * _PAIR_COST):
        budget.left -= runs * _RUN_COST
        _tie_runs(members, groups)
    else:
        _tie_pairs(_meeting_pairs(pieces), members, groups, budget)


def _tie_pairs(
    pairs: Iterable[tuple[_Member, _Member]], members: list[_Member], groups: UnionFind, budget: Budget
) -> None:
    """Compare pairs of members until all are tied or the work is used up."""
    left = _count_groups(members, groups) - 1
    for one, other in pairs:
        if left == 0:
            return
        budget.left -= _SKIP_COST
        if budget.left < 0:
            _join_all(members, groups)
            return
        if groups.find(one[0]) == groups.find(other[0]):
            continue
        budget.left -= _PAIR_COST
        if meet(one[1], other[1], budget).solvable is not False:
            left -= groups.join(one[0], other[0])


def _likely_pairs(members: list[_Member], pieces: list[_Piece]) -> Iterator[tuple[_Member, _Member]]:
    """Each member with the largest one, and with its neighbours."""
    largest = max(members, key=lambda member: _size_of(member[1]))
    for member in members:
        yield largest, member
    for distance in range(1, _NEIGHBOURS + 1):
        for one, other in zip(pieces, pieces[distance:], strict=False):
            yield one[2], other[2]


def _meeting_pairs(pieces: list[_Piece]) -> Iterator[tuple[_Member, _Member]]:
    """The pairs of members whose pieces meet."""
    for place, (_, end, member) in enumerate(pieces):
        for other_place in range(place + 1, len(pieces)):
            start, _, other_member = pieces[other_place]
            if start >= end:
                break
            yield member, other_member


def _tie_runs(members: list[_Member], groups: UnionFind) -> None:
    """Join members by sweeping over every run of bytes of each: exact, whatever the strides."""
    runs: list[tuple[int, int, int]] = []
    for index, (start, _, terms, length) in members:
        starts = [start]
        for step, count in terms:
            starts = [place + step * k for k in range(count + 1) for place in starts]
        runs += [(place, place + length, index) for place in starts]
    runs.sort()
    furthest, holder = runs[0][0], runs[0][2]
    for start, end, index in runs:
        if start < furthest and index != holder:
            groups.join(index, holder)
        if end > furthest:
            furthest, holder = end, index


def _count_groups(members: list[_Member], groups: UnionFind) -> int:
    return len({groups.find(index) for index, _ in members})


def _size_of(footprint: Footprint) -> int:
    """An upper bound of the bytes."""
    size = footprint.run
    for _, count in footprint.terms:
        size *= count + 1
    return size


def _join_all(members: list[_Member], groups: UnionFind) -> None:
    for index, _ in members:
        groups.join(members[0][0], index)
