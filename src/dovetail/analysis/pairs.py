"""Do two regions of memory share a byte? Answered exactly, with the reason.

    overlap(x[:, ::2], x[:, 1::2])   ->   disjoint (gcd)
    overlap(x[2:5], x[4:])           ->   overlapping (nested strides)
    overlap(x[:s0], x[4:])           ->   unknown (symbolic), disjoint if s0 <= 4

Accepts real and fake tensors, descriptions of values, and regions, in any mixture that refers to one memory.
"Unknown" remains in two cases: sizes that are symbols, and adversarial strides over more than
`diophantine.BITSET_UNITS` units of memory on which the search gave up.
"""

from __future__ import annotations

from dovetail.analysis.diophantine import Budget
from dovetail.analysis.footprint import footprint_of, meet, meets_itself
from dovetail.analysis.region import Region, RegionLike, region_of
from dovetail.analysis.symbolic import symbolic_overlap, symbolic_self_overlap
from dovetail.analysis.verdict import Overlap, Reason, Verdict, overlap_from

_DIFFERENT = Overlap(Verdict.DISJOINT, Reason.DIFFERENT_STORAGES)
_EMPTY = Overlap(Verdict.DISJOINT, Reason.EMPTY)


def overlap(a: RegionLike, b: RegionLike, *, symbols_at_least: int = 0) -> Overlap:
    """Whether two places share a byte.

    Args:
        a, b: tensors (real, fake or meta), `TensorMeta`s of one program, or `Region`s.
        symbols_at_least: a number that no size symbol is below; 0 holds for every tensor, 2 for the sizes that
            torch.compile makes symbolic by itself.

    Returns:
        The verdict, the reason, and for an unknown one a condition under which they are disjoint, if one was found.

    Raises: TypeError when a place is none of these; UnsupportedTensor when a tensor is not strided.

    Cost: some microseconds for views made by slicing, reshaping and permuting; at most about a second for any pair
    within 2^28 units (see `diophantine`).
    """
    return overlap_of_regions(region_of(a), region_of(b), symbols_at_least=symbols_at_least)


def overlap_of_regions(a: Region, b: Region, *, symbols_at_least: int = 0, budget: Budget | None = None) -> Overlap:
    """`overlap` of two regions, within a budget of work that a series of questions shares."""
    if a.storage != b.storage:
        return _DIFFERENT
    one, other = footprint_of(a), footprint_of(b)
    if (one is not None and not one.run) or (other is not None and not other.run):
        return _EMPTY
    if one is None or other is None:
        return symbolic_overlap(a, b, symbols_at_least)
    return overlap_from(meet(one, other, budget))


def may_overlap(a: RegionLike, b: RegionLike, *, symbols_at_least: int = 0) -> bool:
    """Whether two places are not known to be disjoint; arguments as for `overlap`."""
    return overlap(a, b, symbols_at_least=symbols_at_least).may_overlap


def overlaps_itself(a: RegionLike, *, symbols_at_least: int = 0) -> Overlap:
    """Whether two different elements of a place share a byte (it is expanded, say); arguments as for `overlap`."""
    region = region_of(a)
    if any(size == 0 for size in region.sizes):
        return _EMPTY
    answer = meets_itself(region)
    return symbolic_self_overlap(region, symbols_at_least) if answer is None else overlap_from(answer)
