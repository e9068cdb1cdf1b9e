"""Schedules of small problems beside the best ones, found by trying everything; and what longer problems are told."""

from __future__ import annotations

import pytest

from dovetail.partition.policy import Policy
from dovetail.partition.whole.bounds import live_bytes
from dovetail.partition.whole.bounds import lowest_peak as bound_on_peaks
from dovetail.partition.whole.problem import NEVER, WholeProblem, build_whole_problem
from dovetail.partition.whole.schedule import Schedule, schedule_of
from dovetail.partition.whole.solve import solve_quickly, solve_whole
from tests.partition.joint_programs import random_program
from tests.partition.whole.brute_force import least_work, lowest_peak, random_problem

_ALL = 10**6  # states: the search does not give up


def _problem(seed: int) -> WholeProblem:
    if seed % 2:
        return build_whole_problem(random_program(seed, nodes=8), Policy(recompute="all"), {})
    return random_problem(seed)


def _work(problem: WholeProblem, schedule: Schedule) -> int:
    """Counted by nodes that are there twice."""
    return sum(problem.costs[run.node] for run in schedule.runs) - problem.work


@pytest.mark.parametrize("part", range(10))
def test_the_best_of_small_problems(part: int) -> None:
    tried = 0
    for seed in range(part * 50, part * 50 + 50):
        problem = _problem(seed)
        assert sum(problem.can_drop) <= 18
        lowest, free = lowest_peak(problem), max(live_bytes(problem))
        assert bound_on_peaks(problem) <= lowest
        below = solve_whole(problem, lowest - 1, _ALL)
        assert (below.peak_bytes, below.least_work) == (lowest, NEVER)
        for limit in sorted({lowest, (lowest + free) // 2, free - 1} - {lowest - 1}):
            best = least_work(problem, limit)
            assert best is not None
            found = solve_whole(problem, limit, _ALL)
            assert found == schedule_of_same(problem, found)
            assert (found.work, found.least_work) == (best, best)
            assert found.peak_bytes <= limit
            bounded = solve_whole(problem, limit, 0)  # without the search
            assert bounded.least_work <= best
            assert bounded.peak_bytes > limit or bounded.work >= best
            tried += 1
    assert tried > 50


def schedule_of_same(problem: WholeProblem, schedule: Schedule) -> Schedule:
    """What the runs alone say of a schedule."""
    assert _work(problem, schedule) == schedule.work
    again = schedule_of(problem, schedule.runs)
    return Schedule(again.runs, again.peak_bytes, again.work, schedule.least_work)


@pytest.mark.parametrize("seed", range(0, 60, 6))
def test_longer_programs(seed: int) -> None:
    """No worse than the quick schedule, and no better than the bound."""
    problem = build_whole_problem(random_program(seed, nodes=60), Policy(recompute="all"), {})
    free = max(live_bytes(problem))
    for share in (0.9, 0.7, 0.5):
        limit = int(free * share)
        quick, found = solve_quickly(problem, limit), solve_whole(problem, limit)
        assert (max(found.peak_bytes, limit), found.work) <= (max(quick.peak_bytes, limit), quick.work)
        assert found.peak_bytes > limit or found.least_work <= found.work
        assert found == solve_whole(problem, limit)
