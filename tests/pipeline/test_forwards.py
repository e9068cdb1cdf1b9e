"""Which split a limit gets that is for the backward of the loss alone: the same row of splits, whatever the limit."""

from __future__ import annotations

import random

from dovetail.pipeline.forwards import Way, way_within


def _way(peak: int, loss: int, work: int) -> Way:
    return Way(peak, loss, min(peak, loss), work, "whole")


_ROW = (_way(100, 70, 10), _way(80, 60, 12), _way(60, 50, 14), _way(70, 50, 15), _way(40, 40, 30))


def test_the_least_work_of_those_of_which_both_peaks_fit() -> None:
    for most, work in ((1000, 10), (100, 10), (99, 12), (60, 14), (59, 30), (40, 30)):
        found = way_within(_ROW, most)
        assert found is not None
        assert found.work == work


def test_below_that_the_peak_of_the_loss_counts_alone() -> None:
    ways = (*_ROW, _way(90, 30, 20), _way(95, 35, 18), _way(99, 30, 25))
    assert way_within(ways, 39) == _way(95, 35, 18)
    assert way_within(ways, 34) == _way(90, 30, 20)
    assert way_within(ways, 29) is None


def test_a_split_whose_loss_needs_more_than_one_for_a_higher_limit_is_left_out() -> None:
    ways = (_way(40, 30, 30), _way(60, 55, 20), _way(80, 50, 10))
    assert way_within(ways, 79) == _way(40, 30, 30)
    assert way_within(ways, 80) == _way(80, 50, 10)


def test_no_peak_rises_and_no_work_falls_as_the_limit_falls() -> None:
    drawn = random.Random(0)
    for _ in range(300):
        count = drawn.randint(1, 9)
        ways = [_way(*(drawn.randint(1, 20) for _ in range(3))) for _ in range(count)]
        found = [way_within(ways, most) for most in range(22)]
        ways_found = [way for way in found if way is not None]
        assert found[found.index(ways_found[0]) :] == ways_found, "what a limit has, higher ones have"
        assert [way.loss_bytes for way in ways_found] == sorted(way.loss_bytes for way in ways_found)
        plain = min(ways, key=lambda way: (way.work, way.loss_bytes))
        both = min(way.both_bytes for way in ways if way.loss_bytes <= plain.loss_bytes)
        assert found[-1] == plain
        within = [way for most, way in enumerate(found) if way is not None and most >= both]
        assert all(way.both_bytes <= most for most, way in enumerate(found) if way is not None and most >= both)
        assert [way.work for way in within] == sorted((way.work for way in within), reverse=True)
        assert all(way.loss_bytes <= most for most, way in enumerate(found) if way is not None)
