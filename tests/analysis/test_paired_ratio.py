"""The interval for a ratio holds it as often as it says, and the median is that of pairs."""

from __future__ import annotations

import math
import random

import pytest

from dovetail.analysis.paired_ratio import paired_ratio


def test_the_median_is_of_pairs_not_of_columns() -> None:
    # The machine is ten times slower for half of the pairs: medians of columns would compare fast with slow moments.
    references = [1.0, 10.0, 1.0, 10.0, 1.0, 10.0, 1.0]
    times = [0.9, 9.0, 0.9, 9.0, 0.9, 9.0, 0.9]
    found = paired_ratio(times, references)
    assert found.median == pytest.approx(0.9)
    assert (found.low, found.high) == (pytest.approx(0.9), pytest.approx(0.9))
    assert found.is_telling


@pytest.mark.parametrize("count", [1, 2, 5])
def test_few_pairs_tell_nothing(count: int) -> None:
    found = paired_ratio([1.0] * count, [1.0] * count)
    assert (found.low, found.high) == (0.0, math.inf)
    assert not found.is_telling


@pytest.mark.parametrize("count", [6, 9, 20, 101])
def test_the_interval_holds_the_median_with_95_percent(count: int) -> None:
    draw = random.Random(count)
    held = 0
    for _ in range(2000):
        found = paired_ratio([draw.lognormvariate(0.0, 1.0) for _ in range(count)], [1.0] * count)
        held += found.low <= 1.0 <= found.high
    assert held / 2000 > 0.935  # 95 % of 2,000, less three standard deviations


def test_outliers_do_not_move_it() -> None:
    times = [1.0 + 0.001 * (number % 5) for number in range(60)]
    times[::10] = [50.0] * 6
    found = paired_ratio(times, [1.0] * 60)
    assert found.median == pytest.approx(1.002, abs=2e-3)
    assert found.is_telling


def test_pairs_come_in_twos() -> None:
    with pytest.raises(ValueError, match="shorter"):
        paired_ratio([1.0, 2.0], [1.0])
