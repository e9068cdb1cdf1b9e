"""Disjoint sets."""

from __future__ import annotations

from dovetail.analysis.union_find import UnionFind


def test_the_smallest_number_stands_for_its_set() -> None:
    sets = UnionFind(4)
    assert sets.new() == 4
    assert sets.join(4, 2)
    assert sets.join(3, 4)
    assert not sets.join(2, 3)
    assert [sets.find(number) for number in range(5)] == [0, 1, 2, 2, 2]
    assert sets.sets() == [[0], [1], [2, 3, 4]]
