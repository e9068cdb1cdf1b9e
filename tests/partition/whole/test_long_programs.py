"""Long programs are searched by the peaks that are expected: few of them are weighed, and plans are the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from benchmarks.planning import layered_step
from dovetail.errors import MemoryLimitTooLow
from dovetail.partition.choose import work_to_spare
from dovetail.partition.policy import Policy
from dovetail.partition.whole import choose
from dovetail.partition.whole.bounds import live_bytes
from dovetail.partition.whole.choose import Ladder, Weighed
from dovetail.partition.whole.problem import WholeProblem, build_whole_problem
from dovetail.partition.whole.schedule import Schedule, expected_peak
from dovetail.passes.inplace import PlanMemory
from dovetail.pipeline.memory_limit import MemoryLimit
from dovetail.pipeline.recompute import RecomputeReport, floor_of, recompute
from tests.partition.joint_programs import random_program

_LAYERS = 10
_SHARES = (0.85, 0.7, 0.6, 0.5)


def _problem(layers: int = _LAYERS) -> WholeProblem:
    return build_whole_problem(layered_step(layers), Policy(recompute="all"), {})


class _Scales:
    """Weighs schedules, and counts them. more: bytes above what is expected of one."""

    def __init__(self, problem: WholeProblem, more: Callable[[Schedule], int] = lambda _: 0) -> None:
        self.problem = problem
        self.more = more
        self.count = 0

    def weigh(self, schedule: Schedule) -> int:
        self.count += 1
        return expected_peak(self.problem, schedule.runs) + self.more(schedule)


def _ladder(scales: _Scales) -> Ladder:
    return Ladder(scales.problem, max(live_bytes(scales.problem)), scales.weigh)


def _numbers(weighed: Weighed | None) -> tuple[int, int] | None:
    return None if weighed is None else (weighed.peak_bytes, weighed.work)


@pytest.fixture(autouse=True)
def _all_are_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "LONG", 0)


def _weighed_on_each_rung(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "LONG", 1 << 60)


def test_only_what_is_found_is_weighed_and_it_is_what_weighing_all_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = _problem()
    free = max(live_bytes(problem))
    quick = []
    for share in _SHARES:
        scales = _Scales(problem)
        quick.append(_numbers(_ladder(scales).under(int(free * share)).chosen))
        assert scales.count == 1
    lowest = _ladder(_Scales(problem)).under(1).lowest
    _weighed_on_each_rung(monkeypatch)
    ladder = _ladder(_Scales(problem))
    assert quick == [_numbers(ladder.under(int(free * share)).chosen) for share in _SHARES]
    assert _numbers(lowest) == _numbers(ladder.under(1).lowest)


def test_where_peaks_are_not_as_expected_all_are_weighed(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = _problem()
    free = max(live_bytes(problem))

    def found() -> list[tuple[int, int] | None]:
        ladder = _ladder(_Scales(problem, lambda schedule: 64 * (1 + len(schedule.runs) % 3)))
        points = [_numbers(ladder.under(int(free * share)).chosen) for share in _SHARES]
        return [
            *points,
            _numbers(ladder.frugal(work_to_spare(ladder.problem.work))),
            (ladder.floor_bytes(), 0),
            *map(_numbers, ladder.curve(2)),
        ]

    before = found()
    _weighed_on_each_rung(monkeypatch)
    assert found() == before
    assert all(point is not None and point[0] <= free * share for point, share in zip(before, _SHARES, strict=False))


def _reports() -> list[RecomputeReport | int]:
    program = layered_step(_LAYERS)
    free = recompute(program, {}, PlanMemory(), MemoryLimit(1 << 60))[1].was_bytes
    limits = [MemoryLimit(int(free * share), is_transient=True) for share in _SHARES]
    found: list[RecomputeReport | int] = [recompute(program, {}, PlanMemory(), limit)[1] for limit in (*limits, None)]
    with pytest.raises(MemoryLimitTooLow) as refusal:
        recompute(program, {}, PlanMemory(), MemoryLimit(1, is_transient=True))
    return [*found, floor_of(refusal.value)]


def test_programs_that_work_in_place_have_the_peaks_that_are_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    reports = _reports()
    _weighed_on_each_rung(monkeypatch)
    assert _reports() == reports


@pytest.mark.parametrize("part", range(4))
def test_allowing_for_work_in_place_only_lowers_what_is_expected(part: int) -> None:
    for seed in range(part * 10, part * 10 + 10):
        problem = build_whole_problem(random_program(seed, nodes=40), Policy(recompute="all"), {})
        chosen = _ladder(_Scales(problem)).under(int(max(live_bytes(problem)) * 0.7)).chosen
        if chosen is not None:
            assert expected_peak(problem, chosen.schedule.runs) <= chosen.schedule.peak_bytes
