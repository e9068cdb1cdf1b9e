"""The checker of arenas: one broken placement for each rule."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dovetail.errors import InvalidPlacement
from dovetail.memory.check import verify_placement
from dovetail.memory.problem import Buffer, Placement, Problem

_PROBLEM = Problem(
    (Buffer("a", 100, 0, 2), Buffer("b", 64, 1, 3), Buffer("c", 128, 2, 4), Buffer("pinned", 64, 0, 4, 192))
)
_FREE = Problem(_PROBLEM.buffers[:3])
_PLACED = Placement((0, 128, 0, 192), 256, 256)
_FREE_PLACED = Placement((0, 128, 0), 192, 192)


def test_a_right_placement_passes() -> None:
    verify_placement(_PROBLEM, _PLACED)
    verify_placement(_FREE, _FREE_PLACED)
    verify_placement(Problem(()), Placement((), 0, 0))


@pytest.mark.parametrize(
    ("placement", "rule"),
    [
        (replace(_PLACED, offsets=(0, 128, 0)), "every buffer has an offset"),
        (replace(_PLACED, offsets=(-64, 128, 0, 192)), "offsets are aligned"),
        (replace(_PLACED, offsets=(0, 100, 0, 192)), "offsets are aligned"),
        (replace(_PLACED, offsets=(0, 128, 0, 256), size_bytes=320), "fixed offsets stay"),
        (replace(_PLACED, size_bytes=192), "buffers lie within the arena"),
        (replace(_PLACED, offsets=(0, 64, 0, 192)), "buffers that are needed at the same time lie apart"),
        (replace(_PLACED, offsets=(64, 0, 128, 192)), "buffers that are needed at the same time lie apart"),
        (replace(_PLACED, bound_bytes=320), "no arena is below its bound"),
    ],
)
def test_a_broken_placement_is_refused(placement: Placement, rule: str) -> None:
    with pytest.raises(InvalidPlacement, match=f"the arena of it breaks a rule: {rule}"):
        verify_placement(_PROBLEM, placement, "it")


def test_a_wrong_bound_is_refused() -> None:
    with pytest.raises(InvalidPlacement, match="the bound is what is needed at one time"):
        verify_placement(_FREE, replace(_FREE_PLACED, bound_bytes=128))


def test_a_buffer_that_is_never_needed_is_refused() -> None:
    with pytest.raises(InvalidPlacement, match="a buffer is needed for a while"):
        verify_placement(Problem((Buffer("a", 64, 2, 2),)), Placement((0,), 64, 0))


def test_buffers_may_follow_each_other_in_one_place() -> None:
    problem = Problem((Buffer("a", 64, 0, 1), Buffer("b", 64, 1, 2), Buffer("none", 0, 0, 2)))
    verify_placement(problem, Placement((0, 0, 0), 64, 64))
