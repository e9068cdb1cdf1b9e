"""Memory of value numbers, held against a list of what each byte is."""

from __future__ import annotations

import random

import pytest
import torch

from dovetail.analysis.shadow_memory import ShadowRegion, Storage
from dovetail.analysis.symbolic_contents import Contents, Numbering

_SIZE = 48


def _region(choose: random.Random) -> ShadowRegion:
    """A region of a storage of 48 bytes."""
    itemsize = choose.choice([1, 2, 4, 8])
    count = _SIZE // itemsize
    kind = choose.random()
    if kind < 0.3:
        start = choose.randrange(count)
        return ShadowRegion(start, (choose.randint(1, count - start),), (1,), itemsize)
    if kind < 0.4:
        return ShadowRegion(0, (count,), (1,), itemsize)
    rows, columns = choose.randint(1, 3), choose.randint(0, 3)
    strides = choose.choice([(columns, 1), (1, rows), (2, 1), (0, 1), (1, 0), (3, 2)])
    last = (rows - 1) * strides[0] + max(columns - 1, 0) * strides[1]
    if last >= count:
        return ShadowRegion(0, (count,), (1,), itemsize)
    return ShadowRegion(choose.randrange(count - last), (rows, columns), strides, itemsize)


def _bytes(region: ShadowRegion) -> list[int]:
    """The byte of the storage that each byte of the elements is, in order."""
    flat = torch.arange(_SIZE).view(-1, region.itemsize)[:, 0].contiguous()
    found = flat.as_strided(region.shape, region.stride, region.offset).reshape(-1)
    return [int(first) + k for first in found for k in range(region.itemsize)]


@pytest.mark.parametrize("seed", range(60))
def test_reads_give_what_was_written(seed: int) -> None:
    choose = random.Random(seed)
    numbering = Numbering()
    storages = [Storage(_SIZE) for _ in range(3)]
    storages[0].hold(start := numbering.new(_SIZE))
    model = [list(range(start, start + _SIZE)), [0] * _SIZE, [0] * _SIZE]
    seen: dict[object, list[int]] = {}
    for _ in range(60):
        here, there = choose.randrange(3), choose.randrange(3)
        region = _region(choose)
        places = _bytes(region)
        action = choose.random()
        contents = storages[here].read(region)
        expected = [model[here][place] for place in places]
        if 0 not in expected:
            key = (region.shape, region.itemsize, contents.ident)
            assert seen.setdefault(key, expected) == expected, "equal idents of other bytes"
            keys = [k for k, held in seen.items() if held == expected and k[:2] == key[:2]]  # type: ignore[index]
            assert keys == [key], "equal bytes with other idents"
        if action < 0.4 and region.count:
            first = numbering.new(region.count * region.itemsize)
            made = list(range(first, first + len(places)))
            if not region.overlaps_itself():
                storages[here].write(region, Contents.run(region.shape, region.itemsize, first))
                for place, number in zip(places, made, strict=True):
                    model[here][place] = number
        elif action < 0.8:
            target = _region(choose)
            fits = target.count == region.count and target.itemsize == region.itemsize
            if fits and not target.overlaps_itself():
                storages[there].write(target, contents.reshaped(target.shape))
                for place, number in zip(_bytes(target), expected, strict=True):
                    model[there][place] = number
        elif action < 0.9 and region.is_contiguous:
            part = storages[here].part(region.first, region.end)
            storages[there] = Storage(_SIZE)
            storages[there].write(ShadowRegion(0, (len(places),), (1,), 1), part.everything())
            model[there] = expected + [0] * (_SIZE - len(expected))


def test_regions_overlap_where_they_share_a_byte() -> None:
    choose = random.Random(0)
    for _ in range(2000):
        a, b = _region(choose), _region(choose)
        assert a.overlaps(b) == bool(set(_bytes(a)) & set(_bytes(b)))
        assert a.overlaps_itself() == (len(set(_bytes(a))) < len(_bytes(a)))


def test_equal_elements_are_converted_to_equal_elements() -> None:
    numbering = Numbering()
    whole = Contents.run((6,), 4, numbering.new(24))
    storage, converted = Storage(24), Storage(48)
    storage.write(ShadowRegion(0, (6,), (1,), 4), whole)
    converted.write(ShadowRegion(0, (6,), (1,), 8), numbering.converted(whole, "wide", 8))
    for region in (
        ShadowRegion(1, (2, 2), (2, 1), 4),
        ShadowRegion(0, (3,), (2,), 4),
        ShadowRegion(2, (2, 3), (0, 1), 4),
    ):
        part = numbering.converted(storage.read(region), "wide", 8)
        wide = ShadowRegion(region.offset, region.shape, region.stride, 8)
        assert part.ident == converted.read(wide).ident
        assert numbering.converted(part, "other", 8).ident != part.ident


def test_a_conversion_that_undoes_itself() -> None:
    numbering = Numbering()
    whole = Contents.run((2, 3), 8, numbering.new(48))
    other = numbering.converted(whole, "conj", 8, undoes_itself=True)
    assert other.ident != whole.ident
    assert numbering.converted(other, "conj", 8, undoes_itself=True).ident == whole.ident


def test_elements_put_together_of_parts() -> None:
    numbering = Numbering()
    storage = Storage(8)
    storage.hold(numbering.new(8))
    storage.write(ShadowRegion(1, (1,), (1,), 2), Contents.run((1,), 2, numbering.new(2)))
    mixed = storage.read(ShadowRegion(0, (2,), (1,), 4))
    assert mixed.unit == 1
    assert numbering.converted(mixed, "wide", 8).ident == numbering.converted(mixed, "wide", 8).ident
    assert numbering.converted(mixed, "wide", 8).ident != numbering.converted(mixed, "wider", 8).ident
