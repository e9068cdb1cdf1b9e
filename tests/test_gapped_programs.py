"""Writes to parts with gaps give eager's bits, and take no more memory than eager."""

from __future__ import annotations

import random

import pytest

from dovetail.analysis.footprint import footprint_of, is_within
from dovetail.analysis.region import Region
from tests.gapped_programs import failure
from tests.rotation import rotated


@pytest.mark.parametrize("first", rotated(range(0, 2000, 20), of=25))
def test_random_programs(first: int) -> None:
    assert {seed: wrong for seed in range(first, first + 20) if (wrong := failure(seed))} == {}


def _bytes_of(region: Region) -> set[int]:
    found = {region.start_bytes}
    for size, step in zip(region.sizes, region.strides_bytes, strict=True):
        found = {start + place * step for start in found for place in range(size)}  # type: ignore[arg-type,operator]
    return {start + place for start in found for place in range(region.itemsize)}  # type: ignore[operator]


def test_what_is_said_to_be_within_is_within() -> None:
    rng, said, true = random.Random(0), 0, 0
    for _ in range(3000):
        rank = rng.randint(1, 3)
        sizes = [rng.randint(1, 4) for _ in range(rank)]
        steps = [4 * rng.choice([1, 2, 3, 4, 8, 16, 5]) for _ in range(rank)]
        outer = Region(("memory", 0), 4 * rng.randint(0, 12), tuple(sizes), tuple(steps), 4)
        start, kept, strides = outer.start_bytes, [], []
        for size, step in zip(sizes, steps, strict=True):
            begin, every = rng.randrange(size + (rng.random() < 0.1)), rng.choice([1, 1, 2])
            start += begin * step
            kept.append(rng.randint(1, max(1, len(range(begin, size, every)))))
            strides.append(step * every)
        inner = Region(("memory", 0), start, tuple(kept), tuple(strides), 4)
        inside, whole = footprint_of(inner), footprint_of(outer)
        assert inside is not None
        assert whole is not None
        is_true = _bytes_of(inner) <= _bytes_of(outer)
        assert is_true or not is_within(inside, whole)
        said, true = said + is_within(inside, whole), true + is_true
    assert said > 0.9 * true
