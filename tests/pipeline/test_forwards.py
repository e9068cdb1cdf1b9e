"""In which order forwards are tried under a limit that is for a backward that is planned later."""

from __future__ import annotations

from dovetail.errors import MemoryLimitTooLow
from dovetail.pipeline.forwards import Forwards, Way

_WAYS = [Way(100, 10, "default"), Way(60, 14, "whole"), Way(80, 12, "whole"), Way(70, 15, "cut"), Way(40, 30, "whole")]


def _error(floor: int) -> MemoryLimitTooLow:
    names = dict.fromkeys(("what", "limit", "floor", "least", "state", "transient", "others"), "")
    return MemoryLimitTooLow(**names, floor_bytes=floor)


def test_the_highest_peak_under_the_limit_first_then_lower_ones_then_the_others_from_the_lowest() -> None:
    forwards = Forwards()
    forwards.begin(_WAYS, 85)
    tried = [forwards.way.peak_bytes]
    while forwards.goes_on(_error(90)):
        tried.append(forwards.way.peak_bytes)
    assert tried == [80, 60, 40, 100]


def test_ways_with_more_work_and_no_lower_peak_are_left_out() -> None:
    forwards = Forwards()
    forwards.begin(_WAYS, 1)
    assert [way.peak_bytes for way in forwards.ways] == [100, 80, 60, 40]


def test_the_lowest_peak_of_all_that_were_tried_is_named() -> None:
    forwards = Forwards()
    forwards.begin(_WAYS[:3], 1)
    errors = [_error(floor) for floor in (55, 50, 52)]
    assert [forwards.goes_on(error) for error in errors] == [True, True, False]
    assert forwards.refusal(errors[-1]) is errors[1]


def test_a_graph_that_is_split_once_is_refused_as_it_is() -> None:
    forwards, error = Forwards(), _error(7)
    assert not forwards.goes_on(error)
    assert forwards.refusal(error) is error
