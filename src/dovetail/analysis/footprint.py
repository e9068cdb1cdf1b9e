"""The bytes of a region of known sizes in their shortest form: runs of bytes, repeated at some strides.

sizes       strides in bytes   ->   runs
(8, 4, 16)  (256, 64, 4)            one of 2,048 bytes
(8, 16)     (128, 4)                8 of 64 bytes, 128 bytes apart
(4, 2, 16)  (256, 128, 4)           the same
(3, 5)      (0, 4)                  one of 20 bytes
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from dovetail.analysis.diophantine import Answer, Budget, Step, Term, are_distinct, solve
from dovetail.analysis.region import Region
from dovetail.ir.sizes import Size


class Footprint(NamedTuple):
    """Bytes `start + sum(stride_k * i_k) + j` for 0 <= i_k <= count_k and 0 <= j < run.

    end: one past the last byte. terms: (stride_k, count_k), strides ascending. An empty region has start == end.
    """

    start: int
    end: int
    terms: tuple[Term, ...]
    run: int


_EMPTY = Footprint(0, 0, (), 0)
_EMPTY_MEETS_NOTHING = Answer(False, Step.INTERVAL)


def footprint_of(region: Region) -> Footprint | None:
    """The bytes of the region; None when one of its numbers is symbolic and it is not surely empty."""
    start = region.start_bytes
    dims: list[Term] = []
    is_known = type(start) is int
    for size, step in zip(region.sizes, region.strides_bytes, strict=True):
        if type(size) is not int:
            is_known = False
        elif size <= 0:
            return _EMPTY
        elif size > 1:
            if type(step) is not int:
                is_known = False
            elif step > 0:
                dims.append((step, size - 1))
            elif step < 0 and type(start) is int:
                start += step * (size - 1)
                dims.append((-step, size - 1))
    if not is_known:
        return None
    assert isinstance(start, int), "checked above"
    if len(dims) > 1:
        dims.sort()
    terms, run = _merge(dims, region.itemsize)
    end = start + run
    for step, count in terms:
        end += step * count
    return Footprint(start, end, terms, run)


def _merge(dims: list[Term], run: int) -> tuple[tuple[Term, ...], int]:
    """Let dimensions that continue a run, or another dimension, become part of it."""
    terms: list[Term] = []
    for step, count in dims:
        if not terms:
            if step <= run:
                run += step * count
            else:
                terms.append((step, count))
            continue
        inner, inner_count = terms[-1]
        times, rest = divmod(step, inner)
        if rest == 0 and times <= inner_count + 1:
            terms[-1] = (inner, inner_count + times * count)
        else:
            terms.append((step, count))
    return tuple(terms), run


def is_within(inner: Footprint, outer: Footprint) -> bool:
    """Whether every byte of one is surely one of the other: its strides are multiples of strides there, or in a run.

    False is no proof of the contrary.
    """
    left, free = inner.start - outer.start, list[Term]()
    for step, count in reversed(outer.terms):  # where it begins
        used = max(0, min(left // step, count))
        left -= used * step
        free.append((step, count - used))
    if left < 0:
        return inner.run == 0
    for step, count in inner.terms:
        for place, (other, most) in enumerate(free):
            times, rest = divmod(step, other)
            if rest == 0 and times * count <= most:
                free[place] = (other, most - times * count)
                break
        else:
            left += step * count
    return left + inner.run <= outer.run


def meet(a: Footprint, b: Footprint, budget: Budget | None = None) -> Answer:
    """Whether two footprints in one memory share a byte.

    A shared byte is a_start + sum(a_k i_k) + p = b_start + sum(b_k j_k) + q. With j_k counted down from its end, every
    coefficient is positive, and q - p lies between -(a_run - 1) and b_run - 1.
    """
    if not a.run or not b.run:
        return _EMPTY_MEETS_NOTHING
    high = b.end - 1 - a.start
    low = high - b.run - a.run + 2
    if a.terms == b.terms:
        return solve([(step, 2 * count) for step, count in a.terms], low, high, budget)
    if not a.terms or not b.terms:
        return solve(a.terms or b.terms, low, high, budget)
    counts = dict(a.terms)
    for step, count in b.terms:
        counts[step] = counts.get(step, 0) + count
    return solve(sorted(counts.items()), low, high, budget)


def meets_itself(region: Region, budget: Budget | None = None) -> Answer | None:
    """Whether two different elements of the region share a byte; None when one of its numbers is symbolic.

    They do when sum(stride_k * d_k) lies in (-itemsize, itemsize) for differences |d_k| <= count_k that are not all 0.
    The last d_k (by stride) that is not 0 is taken to be positive: one question for each dimension. Where a question is
    too hard, the bytes are counted.
    """
    dims: list[Term] = []
    for size, step in zip(region.sizes, region.strides_bytes, strict=True):
        if type(size) is not int or (size > 1 and type(step) is not int):
            return None
        if size > 1:
            assert isinstance(step, int), "checked above"
            dims.append((abs(step), size - 1))
    if any(size == 0 for size in region.sizes):
        return _EMPTY_MEETS_NOTHING
    dims.sort()
    if dims and dims[0][0] < region.itemsize:
        return Answer(True, Step.INTERVAL)
    answer = Answer(False, Step.INTERVAL)
    reach = 0
    for place, (step, count) in enumerate(dims):
        if step < reach + region.itemsize:
            found = _meets_in(dims[:place], step, count, reach, region.itemsize, budget)
            if found.solvable:
                return found
            if answer.solvable is not None:
                answer = found
        reach += step * count
    if answer.solvable is None:
        counted = are_distinct(dims, region.itemsize, budget)
        return Answer(None if counted.solvable is None else not counted.solvable, counted.step)
    return answer


def _meets_in(inner: list[Term], step: int, count: int, reach: int, itemsize: int, budget: Budget | None) -> Answer:
    """Whether elements meet whose places differ in the dimension (step, count), and else in inner dimensions only."""
    counts: dict[int, int] = {step: count - 1}
    for inner_step, inner_count in inner:
        counts[inner_step] = counts.get(inner_step, 0) + 2 * inner_count
    terms = sorted((c, n) for c, n in counts.items() if n)
    middle = reach - step
    return solve(terms, middle - itemsize + 1, middle + itemsize - 1, budget, with_bitsets=False)


def without_shared_symbols(a: Region, b: Region) -> tuple[Region, Region]:
    """Two regions without the dimensions of symbolic sizes or strides that both have, and from where both begin.

    What lies in the other without these does so with them, whatever the sizes are.
    """
    dims, others = (list(zip(each.sizes, each.strides_bytes, strict=True)) for each in (a, b))
    for dim in [dim for dim in dims if not all(type(number) is int for number in dim)]:
        if dim in others:
            dims.remove(dim)
            others.remove(dim)
    start, other = a.start_bytes, b.start_bytes
    if start == other and type(start) is not int:
        start = other = 0

    def changed(region: Region, dims: Sequence[tuple[Size, Size]], start: Size) -> Region:
        sizes, strides = (tuple(dim[place] for dim in dims) for place in (0, 1))
        return replace(region, sizes=sizes, strides_bytes=strides, start_bytes=start)

    return changed(a, dims, start), changed(b, others, other)
