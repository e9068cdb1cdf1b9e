"""Groups of views against the closure of all pairs; the work grows with the number of views."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch

from dovetail.analysis import Region, overlap_groups
from dovetail.ir.convert import describe
from dovetail.ir.program import TensorMeta
from dovetail.ir.sizes import SizeExpr, symbol
from tests import overlap_sweep
from tests.counting import LINEAR, growth


def _closure(count: int, related: Callable[[int, int], bool]) -> list[list[int]]:
    labels = list(range(count))
    for i in range(count):
        for j in range(i):
            if related(i, j):
                labels = [labels[j] if label == labels[i] else label for label in labels]
    found: dict[int, list[int]] = {}
    for index, label in enumerate(labels):
        found.setdefault(label, []).append(index)
    return list(found.values())


def _by_bytes(regions: list[Region]) -> list[list[int]]:
    places = [set(overlap_sweep.bytes_of(region)) for region in regions]
    return _closure(
        len(regions), lambda i, j: regions[i].storage == regions[j].storage and not places[i].isdisjoint(places[j])
    )


def _random_views(choose: random.Random) -> list[Region]:
    """Views of one matrix, or of two, of one item size or several, or unrelated regions."""
    shape = [choose.randint(2, 9) for _ in range(choose.randint(1, 3))]
    item = choose.choice((1, 4))
    found = []
    for _ in range(choose.randint(2, 30)):
        if choose.random() < 0.1:
            region = overlap_sweep.random_region(choose, 8)
        else:
            region = overlap_sweep.random_view(choose, shape, item)
        if choose.random() < 0.7:  # small views, which seldom overlap
            sizes = tuple(min(size, choose.randint(1, 3)) for size in region.sizes)  # type: ignore[type-var]
            region = Region(region.storage, region.start_bytes, sizes, region.strides_bytes, region.itemsize)
        storage = choose.choice(("memory", "memory", "memory", "other"))
        found.append(Region(storage, region.start_bytes, region.sizes, region.strides_bytes, region.itemsize))
    return found


def test_groups_are_the_closure_of_shared_bytes() -> None:
    choose = random.Random(0)
    sizes = []
    for _ in range(600):
        regions = _random_views(choose)
        expected = _by_bytes(regions)
        assert overlap_groups(regions) == expected
        sizes.append(len(expected) / len(regions))
    assert 0.2 < sum(sizes) / len(sizes) < 0.8


@pytest.mark.parametrize("seed", range(6))
def test_partial_tilings_with_larger_views(seed: int) -> None:
    choose = random.Random(seed)
    x = torch.zeros(12, 20)
    views = [x[i : i + 3, j : j + 4] for i in range(0, 12, 3) for j in range(0, 20, 4)]
    views += [x[:, choose.randrange(20)] for _ in range(seed)]
    views += [x[choose.randrange(3) :: 4, choose.randrange(3) :: 4] for _ in range(seed // 2)]
    choose.shuffle(views)
    arrays = [view.numpy() for view in views]
    assert overlap_groups(views) == _closure(len(views), lambda i, j: np.shares_memory(arrays[i], arrays[j]))


@pytest.mark.parametrize("period", [7, 12, 16])
def test_pieces_that_cross_the_end_of_a_period(period: int) -> None:
    choose = random.Random(period)
    for _ in range(100):
        regions = [
            Region("memory", choose.randint(0, 3 * period), (3, choose.randint(1, 6)), (period, 1), 1)
            for _ in range(choose.randint(7, 12))
        ]
        assert overlap_groups(regions) == _by_bytes(regions)


def test_equal_empty_and_separate_views() -> None:
    x, y = torch.zeros(4, 6), torch.zeros(4, 6)
    assert overlap_groups([]) == []
    assert overlap_groups([x[:, :3], y, x[:0], x[:, 2:5], x[:, 5], x[:, :3], x[:0]]) == [[0, 3, 5], [1], [2], [4], [6]]
    assert overlap_groups([describe(x[0], 0), describe(x[1], 0), describe(x, 1)]) == [[0], [1], [2]]


def test_symbolic_views() -> None:
    s0, s1 = symbol("s0"), symbol("s1")

    def rows(start: int | SizeExpr, count: int | SizeExpr) -> TensorMeta:
        return TensorMeta((count,), (1,), start, torch.float32, torch.device("cpu"), 0)

    assert overlap_groups([rows(0, s0), rows(s0, s1), rows(s0, 4), rows(0, 0)]) == [[0], [1, 2], [3]]


def test_hidden_ties_are_found_in_a_crowd() -> None:
    x = torch.zeros(64, 256)
    columns = list(x.unbind(1))
    assert overlap_groups([*columns, x[:, ::2]])[0] == [*range(0, 256, 2), 256]
    assert len(overlap_groups([*columns, x[:, ::2]])) == 129
    assert len(overlap_groups([*columns, x[3]])) == 1
    assert len(overlap_groups([*columns, x[5, 10:20], x[9, 15:30]])) == 256 - 19


@pytest.mark.parametrize("seed", range(3))
def test_a_crowd_without_any_order(seed: int) -> None:
    choose = random.Random(seed)
    regions = [
        Region(
            "memory",
            choose.randrange(1 << 20),
            tuple(choose.randint(1, 5) for _ in range(2)),
            tuple(choose.randint(1, 1 << 17) for _ in range(2)),
            choose.choice((1, 4)),
        )
        for _ in range(1500)
    ]
    owner: dict[int, int] = {}
    ties = [(index, owner.setdefault(p, index)) for index, r in enumerate(regions) for p in overlap_sweep.bytes_of(r)]
    labels = list(range(len(regions)))
    for one, other in ties:
        if labels[one] != labels[other]:
            labels = [labels[other] if label == labels[one] else label for label in labels]
    found: dict[int, list[int]] = {}
    for index, label in enumerate(labels):
        found.setdefault(label, []).append(index)
    assert overlap_groups(regions) == list(found.values())
    assert 100 < len(found) < 1400


def _columns(count: int) -> list[torch.Tensor]:
    return list(torch.zeros(8, count).unbind(1))


def _rows(count: int) -> list[torch.Tensor]:
    return list(torch.zeros(16 * count).split(16))


def _tiles(count: int) -> list[torch.Tensor]:
    x = torch.zeros(8 * count, 128)
    return [x[i : i + 32, j : j + 32] for i in range(0, 8 * count, 32) for j in range(0, 128, 32)]


def _tiles_and_all(count: int) -> list[torch.Tensor]:
    tiles = _tiles(count)
    assert tiles[0]._base is not None
    return [*tiles, tiles[0]._base]


def _combs(count: int) -> list[torch.Tensor]:
    x = torch.zeros(4 * count)
    return [x.as_strided((count,), (2,), i) for i in range(count)]


@pytest.mark.parametrize(
    ("views", "groups_of"),
    [(_columns, int), (_rows, int), (_tiles, int), (_tiles_and_all, lambda count: 1), (_combs, lambda count: 2)],
)
def test_work_grows_with_the_number_of_views(
    views: Callable[[int], list[torch.Tensor]], groups_of: Callable[[int], int]
) -> None:
    assert len(overlap_groups(views(256))) == groups_of(256)
    assert growth(lambda count: partial(overlap_groups, views(count)), 256) < LINEAR
