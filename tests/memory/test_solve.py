"""Solvers of arenas: the checker on every answer, brute force on small problems, published problems at capacity."""

from __future__ import annotations

import random
from itertools import pairwise, permutations

import pytest

from dovetail.errors import InvalidPlacement
from dovetail.memory.check import verify_placement
from dovetail.memory.greedy import greedy_placements, height, place_in_order
from dovetail.memory.items import parts_of, sections_of
from dovetail.memory.problem import Buffer, Placement, Problem
from dovetail.memory.search import luby, search
from dovetail.memory.solve import solve
from tests.memory.challenge import CAPACITY, NAMES, challenge


def random_problem(seed: int, count: int, *, times: int = 8, largest: int = 6, fixed: bool = False) -> Problem:
    rng = random.Random(seed)
    buffers = []
    for number in range(count):
        start = rng.randrange(times)
        end = rng.randint(start + 1, times)
        buffers.append(
            Buffer(f"b{number}", rng.randint(0, largest) * 64 - rng.randrange(64) * rng.randrange(2), start, end)
        )
    buffers = [b if b.size_bytes > 0 else Buffer(b.name, 64, b.start, b.end) for b in buffers]
    if fixed:
        last = buffers[-1]
        buffers[-1] = Buffer(last.name, last.size_bytes, last.start, last.end, rng.randrange(6) * 64)
    return Problem(tuple(buffers))


def smallest_arena(problem: Problem) -> int:
    """By trying all orders: in one of them, each buffer lies as low as it can in a best placement."""
    best = 0
    for part in parts_of(problem):
        found = [place_in_order(part, order, 1 << 40) for order in permutations(range(len(part)))]
        best = max(best, min(height(part, offsets) for offsets in found if offsets is not None) * part.unit)
    return best


@pytest.mark.parametrize("seed", range(150))
def test_small_problems_are_solved_as_brute_force_does(seed: int) -> None:
    problem = random_problem(seed, 3 + seed % 4)
    placement = solve(problem)
    verify_placement(problem, placement)
    assert placement.size_bytes == smallest_arena(problem)


@pytest.mark.parametrize("seed", range(60))
def test_the_search_refutes_what_cannot_be_and_finds_what_can(seed: int) -> None:
    problem = random_problem(1000 + seed, 6, times=5)
    best = smallest_arena(problem)
    for part in parts_of(problem):
        own = min(height(part, o) for order in permutations(range(len(part))) if (o := place_in_order(part, order, 99)))
        found = search(part, own, 100_000)
        assert found.offsets is not None
        assert height(part, found.offsets) == own
        assert own * part.unit <= best
        refuted = search(part, own - 1, 100_000)
        assert (refuted.offsets, refuted.is_proved) == (None, True)


@pytest.mark.parametrize("seed", range(40))
def test_larger_problems_pass_the_checker_and_are_solved_alike_twice(seed: int) -> None:
    problem = random_problem(2000 + seed, 60, times=30, largest=40, fixed=seed % 4 == 0)
    placement = solve(problem, decisions=2000)
    verify_placement(problem, placement)
    assert solve(problem, decisions=2000) == placement
    for part in parts_of(problem):
        for _, offsets in greedy_placements(part, 1 << 40):
            assert len(offsets) == len(part)


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"I"}))
def test_published_problems_are_solved_at_their_capacity(name: str) -> None:
    problem = challenge(name)
    placement = solve(problem, CAPACITY, decisions=20_000)
    verify_placement(problem, placement)
    assert placement.size_bytes <= CAPACITY


def test_parts_share_no_time_and_sections_hold_every_pair_that_meets() -> None:
    for seed in range(30):
        problem = random_problem(seed, 14, times=20)
        parts = parts_of(problem)
        assert sorted(number for part in parts for number in part.numbers) == list(range(14))
        for before, after in pairwise(parts):
            assert max(before.ends) <= min(after.starts)
        for part in parts:
            sections = sections_of(part)
            buffers = [problem.buffers[number] for number in part.numbers]
            for i, a in enumerate(buffers):
                for j, b in enumerate(buffers):
                    assert a.meets(b) == any({i, j} <= section for section in sections)
            assert not any(a < b for a in sections for b in sections)


def test_fixed_offsets_stay_and_may_be_in_each_others_way() -> None:
    free = Buffer("free", 128, 0, 4)
    problem = Problem((Buffer("a", 64, 0, 2, 64), Buffer("b", 64, 1, 3, 192), free))
    placement = solve(problem)
    verify_placement(problem, placement)
    assert placement.offsets == (64, 192, 256)
    with pytest.raises(InvalidPlacement, match="fixed offsets are in each other's way"):
        solve(Problem((Buffer("a", 65, 0, 2, 64), Buffer("b", 64, 1, 3, 128))))


def test_nothing_to_place() -> None:
    assert solve(Problem(())) == Placement((), 0, 0, "nothing to place")
    assert solve(Problem((Buffer("empty", 0, 0, 1),))).size_bytes == 0
    assert Placement((), 0, 0).ratio == 1.0


def test_runs_grow_as_luby_says() -> None:
    assert [luby(number) for number in range(1, 16)] == [1, 1, 2, 1, 1, 2, 4, 1, 1, 2, 1, 1, 2, 4, 8]
