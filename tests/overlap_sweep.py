"""Compare overlap analysis with brute force on random pairs of regions.

    python -m tests.overlap_sweep --pairs 100000

Every pair is answered three times: by dovetail, by the set of bytes of each region, and by `numpy.shares_memory`. The
self-overlap of the first region of each pair is compared as well. The exit status is 1 when an answer differs.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from math import prod

import numpy as np

from dovetail.analysis import Region, Verdict, overlap, overlaps_itself

_ITEMS = (1, 1, 2, 4, 8)
_MEMORY = np.zeros(1 << 20, dtype=np.uint8)


@dataclass
class Tally:
    """What a comparison has found. reasons: how often each step decided. differences: pairs answered wrongly."""

    pairs: int = 0
    overlapping: int = 0
    self_overlapping: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    differences: list[str] = field(default_factory=list)


def bytes_of(region: Region) -> list[int]:
    """Every byte of the region, element by element, with repeats."""
    ranges = [range(0, size * step, step) if step else [0] * size for size, step in _dims(region)]
    starts = [region.start_bytes + sum(steps) for steps in itertools.product(*ranges)]  # type: ignore[operator]
    return [start + k for start in starts for k in range(region.itemsize)]


def _dims(region: Region) -> list[tuple[int, int]]:
    return list(zip(region.sizes, region.strides_bytes, strict=True))  # type: ignore[arg-type]


def as_array(region: Region) -> np.ndarray:
    """An array of NumPy over the bytes of the region."""
    return np.ndarray(
        region.sizes,  # type: ignore[arg-type]
        np.dtype(f"V{region.itemsize}"),
        _MEMORY,
        region.start_bytes,  # type: ignore[arg-type]
        region.strides_bytes,  # type: ignore[arg-type]
    )


def random_pair(choose: random.Random) -> tuple[Region, Region]:
    """Two regions of one storage: views of one matrix, look-alikes, or anything, near or far from each other."""
    kind = choose.random()
    if kind < 0.35:
        shape = [choose.randint(1, 6) for _ in range(choose.randint(1, 4))]
        item = choose.choice(_ITEMS)
        return random_view(choose, shape, item), random_view(choose, shape, item)
    scale = choose.choice((3, 8, 8, 30, 200, 1500))
    one = random_region(choose, scale)
    if kind < 0.55:
        start = choose.randint(0, max(1, scale))
        item = choose.choice((one.itemsize, choose.choice(_ITEMS)))
        return one, Region("memory", start, one.sizes, one.strides_bytes, item)
    return one, random_region(choose, scale)


def random_region(choose: random.Random, scale: int) -> Region:
    """Up to four dimensions with strides up to `scale` items, 0 included."""
    rank = choose.randint(0, 4)
    sizes = tuple(choose.choice((0,) * (choose.random() < 0.03) or range(1, 6)) for _ in range(rank))
    item = choose.choice(_ITEMS)
    unit = choose.choice((1, item))
    strides = tuple(choose.choice((0, 1, choose.randint(1, scale), choose.randint(1, scale))) for _ in range(rank))
    return Region("memory", choose.randint(0, 2 * scale) * unit, sizes, tuple(unit * s for s in strides), item)


def random_view(choose: random.Random, shape: list[int], item: int) -> Region:
    """A view made by slicing and permuting a contiguous tensor, sometimes seen as smaller items."""
    start, sizes, strides = 0, [], []
    for place, size in enumerate(shape):
        stride = prod(shape[place + 1 :]) * item
        first, step = choose.randrange(size), choose.randint(1, 3)
        last = choose.randint(first + (choose.random() < 0.97), size)
        start += first * stride
        sizes.append(len(range(first, last, step)))
        strides.append(stride * step)
    order = choose.sample(range(len(shape)), len(shape))
    part = choose.choice((item, item, max(1, item // 2)))
    start += choose.randint(0, item // part - 1) * part
    return Region("memory", start, tuple(sizes[i] for i in order), tuple(strides[i] for i in order), part)


def compare(pairs: int, seed: int) -> Tally:
    """Answer random pairs in every way."""
    choose = random.Random(seed)
    tally = Tally()
    for _ in range(pairs):
        one, other = random_pair(choose)
        tally.pairs += 1
        places = bytes_of(one)
        _compare_pair(tally, one, other, not set(places).isdisjoint(bytes_of(other)))
        _compare_self(tally, one, len(set(places)) < len(places))
    return tally


def _compare_pair(tally: Tally, one: Region, other: Region, expected: bool) -> None:
    tally.overlapping += expected
    forward, backward = overlap(one, other), overlap(other, one)
    tally.reasons[str(forward)] += 1
    wanted = Verdict.OVERLAPPING if expected else Verdict.DISJOINT
    if forward.verdict is not wanted or backward.verdict is not wanted:
        tally.differences.append(f"{one}, {other}: {forward}, the other way round {backward}; it is {wanted.value}")
    if np.shares_memory(as_array(one), as_array(other)) is not expected:
        tally.differences.append(f"{one}, {other}: numpy differs from {wanted.value}")


def _compare_self(tally: Tally, region: Region, expected: bool) -> None:
    tally.self_overlapping += expected
    answer = overlaps_itself(region)
    tally.reasons[f"by itself: {answer}"] += 1
    if answer.verdict is not (Verdict.OVERLAPPING if expected else Verdict.DISJOINT):
        tally.differences.append(f"{region} by itself: {answer}; that is wrong")


def main(argv: list[str] | None = None) -> int:
    """Compare, and print how often each step decided."""
    parser = argparse.ArgumentParser(prog="python -m tests.overlap_sweep", description=__doc__.split("\n")[0])
    parser.add_argument("--pairs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    start = time.monotonic()
    tally = compare(options.pairs, options.seed)
    for reason, count in tally.reasons.most_common():
        print(f"{count:8}  {reason}")
    print(
        f"{tally.pairs} pairs, {tally.overlapping} overlapping, {tally.self_overlapping} overlapping themselves, "
        f"{len(tally.differences)} differences, {time.monotonic() - start:.0f} s"
    )
    for difference in tally.differences[:20]:
        print(difference)
    return 1 if tally.differences else 0


if __name__ == "__main__":
    sys.exit(main())
