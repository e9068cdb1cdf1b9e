"""A short list of combinations in which any two choices meet.

Source: Cohen, Dalal, Fredman and Patton, "The AETG system" (1997): one combination after the other, each the one found
that covers the most pairs not covered before. Here the search is exhaustive around the first pair still uncovered, and
nothing is drawn, so that the list is the same everywhere.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TypeAlias

Row: TypeAlias = tuple[int, ...]
_Pair: TypeAlias = tuple[tuple[int, int], tuple[int, int]]  # two of (factor, choice)


def covering_rows(sizes: Sequence[int], allowed: Callable[[Row], bool]) -> list[Row]:
    """Rows of choices, one per factor, so that every two choices that an allowed row has are in a row of the list.

    sizes: the number of choices of each factor. Rows that cover more stand first. Cost: O(rows x all allowed rows) of
    set look-ups in the worst case; seconds for three factors of some dozen choices.
    """
    rows = [row for row in itertools.product(*map(range, sizes)) if allowed(row)]
    containing: dict[_Pair, list[Row]] = {}
    for row in rows:
        for pair in _pairs(row):
            containing.setdefault(pair, []).append(row)
    left = set(containing)
    found: list[Row] = []
    for pair in sorted(containing, key=_spread):
        if pair in left:
            row = max(containing[pair], key=lambda row: len(left.intersection(_pairs(row))))
            found.append(row)
            left.difference_update(_pairs(row))
    return found


def single_rows(rows: Sequence[Row]) -> list[Row]:
    """A part of the rows, in their order, in which every choice of every factor still is."""
    left = {item for row in rows for item in enumerate(row)}
    found = []
    while left:
        row = max(rows, key=lambda row: len(left.intersection(enumerate(row))))
        found.append(row)
        left.difference_update(enumerate(row))
    return sorted(found, key=rows.index)


def _pairs(row: Row) -> list[_Pair]:
    return list(itertools.combinations(enumerate(row), 2))


def _spread(pair: _Pair) -> tuple[int, _Pair]:
    """Pairs far apart in the lists come next to each other, so that a beginning of the list has a bit of everything."""
    (_, a), (_, b) = pair
    return (a * 7 + b * 11) % 97, pair
