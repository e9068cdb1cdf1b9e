"""What is not walked, or not to its end, changes no schedule."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dovetail
from dovetail.partition.policy import Policy
from dovetail.partition.whole.bounds import live_bytes
from dovetail.partition.whole.problem import NEVER, WholeProblem, build_whole_problem
from dovetail.partition.whole.schedule import Schedule
from dovetail.partition.whole.solve import Quick, solve_quickly, solve_whole
from dovetail.partition.whole.walk import Most, Walker, _Walk
from tests.partition.joint_programs import random_program

_WEIGHTS = (0.25, 0.5, 0.0)
_SHARES = (0.9, 0.7, 0.5, 0.3)


def _problem(seed: int, nodes: int = 40) -> WholeProblem:
    return build_whole_problem(random_program(seed, nodes=nodes), Policy(recompute="all"), {})


def _whole_walks(problem: WholeProblem, limit: int) -> list[Schedule]:
    walks = [Walker(problem).walk(limit, weight, {}) for weight in _WEIGHTS]
    found = [schedule for schedule in walks if schedule is not None]
    assert len(found) == len(walks)
    return found


@pytest.mark.parametrize("part", range(4))
def test_a_question_has_the_answer_that_the_best_walk_gives(part: int) -> None:
    answers = []
    for seed in range(part * 20, part * 20 + 20):
        problem = _problem(seed)
        free = max(live_bytes(problem))
        for share in _SHARES:
            limit = int(free * share)
            best = min(_whole_walks(problem, limit), key=lambda s: (max(s.peak_bytes, limit), s.work))
            assert solve_quickly(problem, limit) == best
            for most in (0, best.work - 1, best.work, problem.work / 50, NEVER):
                quick = Quick(problem, limit)
                answer = quick.keeps(most)
                assert answer == (best.peak_bytes <= limit and best.work <= most)
                assert quick.best[0] == best
                assert quick.keeps(most) == answer
                answers.append(answer)
    assert {*answers} == {True, False}


@pytest.mark.parametrize("part", range(4))
def test_a_walk_ends_only_where_it_needs_more(part: int) -> None:
    ended = 0
    for seed in range(part * 20, part * 20 + 20):
        problem = _problem(seed)
        limit = max(live_bytes(problem)) // 2
        (whole, *_) = _whole_walks(problem, limit)
        peak, work = whole.peak_bytes, whole.work
        for most in (Most(peak, work), Most(peak, NEVER), Most(NEVER, work)):
            assert Walker(problem).walk(limit, _WEIGHTS[0], {}, most=most) == whole
        for most in (Most(peak - 1, NEVER), Most(NEVER, work - 1)):
            assert Walker(problem).walk(limit, _WEIGHTS[0], {}, most=most) is None
            ended += 1
    assert ended


def test_a_schedule_that_needs_too_much_is_not_looked_for() -> None:
    same = other = 0
    for seed in range(0, 120, 3):
        problem = _problem(seed, nodes=60)
        limit = int(max(live_bytes(problem)) * 0.6)
        found = solve_whole(problem, limit, 0)
        for most in (0, problem.work / 50, found.work, NEVER):
            bounded = solve_whole(problem, limit, 0, at_most=most, quick=Quick(problem, limit))
            if found.peak_bytes <= limit and found.work <= most:
                assert bounded == found
                same += 1
            else:
                assert bounded.peak_bytes > limit or bounded.work > most
                other += bounded != found
    assert same > 8
    assert other > 5


def test_a_recurrence_is_not_made_again_for_each_of_its_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each state of a GRU is read several times: made again for each, a chain takes without end."""
    layer, x = nn.GRU(4, 8), torch.randn(12, 2, 4)
    run_again, count = _Walk._run_again, 0

    def counted(*args: Any) -> None:
        nonlocal count
        count += 1
        run_again(*args)

    def step(x: Tensor) -> None:
        layer.zero_grad()
        layer(x)[0][-1].sum().backward()

    monkeypatch.setattr(_Walk, "_run_again", counted)
    dovetail.estimate(step, x)
    assert 0 < count < 200_000
