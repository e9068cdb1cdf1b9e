"""The solver against a search through every choice, and its speed."""

from __future__ import annotations

import random
from fractions import Fraction
from functools import partial

import pytest

from dovetail.ir.program import Phase
from dovetail.partition.check_recompute import verify_recomputation
from dovetail.partition.choose import residual_bytes, split_by_cut
from dovetail.partition.policy import Policy
from dovetail.partition.problem import Problem, build_problem
from dovetail.partition.solve import follow, solve_cut
from dovetail.partition.work import work_of
from tests.counting import LINEAR, growth
from tests.partition.joint_programs import ALL, CHEAP, best_by_search, random_program

# Programs in which an input receives a view of itself.
_FOUND = (917, 949, 1085)


@pytest.mark.parametrize(("recompute", "may_run"), [("cheap", CHEAP), ("all", ALL)])
def test_no_choice_is_better(recompute: str, may_run: frozenset[object]) -> None:
    gains = 0
    for seed in (*range(250), *_FOUND):
        program = random_program(seed)
        policy = Policy(recompute=recompute)
        solution = solve_cut(build_problem(program, policy, {}).problem)
        assert (solution.saved_bytes, solution.work) == best_by_search(program, may_run), seed
        split = split_by_cut(program, policy, {})
        verify_recomputation(program, split)
        own = {node.outputs for node in program.nodes if node.phase is Phase.BACKWARD}
        copies = [node for node in split.backward.nodes if node.outputs not in own]
        assert sum(work_of(node, {}) for node in copies) == solution.work, seed
        assert residual_bytes(split, {}) == solution.saved_bytes, seed
        gains += bool(copies)
    assert gains > 50


@pytest.mark.parametrize("price", [Fraction(1, 20_000), Fraction(1, 3_000), Fraction(1)])
@pytest.mark.parametrize(("recompute", "may_run"), [("cheap", CHEAP), ("all", ALL)])
def test_no_choice_is_better_at_a_price(recompute: str, may_run: frozenset[object], price: Fraction) -> None:
    lasting = 0
    for seed in (*range(100), *_FOUND):
        program = random_program(seed)
        solution = solve_cut(build_problem(program, Policy(recompute=recompute), {}).problem, price)
        saved, moved = best_by_search(program, may_run, price)
        assert solution.saved_bytes + price * solution.work == saved + price * moved, seed
        lasting += bool(solution.recomputed)
    assert bool(lasting) == (price < 1)  # whatever runs again reads and writes more than it saves


def test_a_higher_price_moves_fewer_bytes() -> None:
    problem = build_problem(random_program(7, 200), Policy("all"), {}).problem
    solutions = [
        solve_cut(problem, price) for price in (None, *map(Fraction, ("1/50000", "1/10000", "1/4000", "1/2000", "1")))
    ]
    moved = [solution.work for solution in solutions]
    saved = [solution.saved_bytes for solution in solutions]
    assert moved == sorted(moved, reverse=True)
    assert saved == sorted(saved)
    assert moved[0] > moved[-1] == 0


def test_the_choice_does_not_depend_on_the_run() -> None:
    problem = build_problem(random_program(7, 200), Policy("all"), {}).problem
    assert solve_cut(problem) == solve_cut(problem)


def test_following_a_choice_saves_what_cannot_run_again() -> None:
    problem = Problem(sizes=(4, 8), makers=(0, 1), costs=(None, 12), reads=((), (0,)), wanted=(1,))
    assert solve_cut(problem).saved == {0}
    assert follow(problem, {1}).saved == {1}
    assert follow(problem, set()) == solve_cut(problem)


def test_a_tie_in_bytes_moves_nothing() -> None:
    problem = Problem(sizes=(8, 8), makers=(0, 1), costs=(None, 16), reads=((), (0,)), wanted=(1,))
    assert (solve_cut(problem).saved, solve_cut(problem).recomputed) == ({1}, frozenset())


def test_bytes_of_any_size_are_exact() -> None:
    huge = 2**70
    problem = Problem(sizes=(huge, huge + 1), makers=(0, 1), costs=(None, huge), reads=((), (0,)), wanted=(1,))
    assert solve_cut(problem).saved_bytes == huge


def _many_nodes(seed: int, count: int) -> Problem:
    rng = random.Random(seed)
    reads = [
        tuple({rng.randrange(max(0, i - 30), i) for _ in range(rng.randint(1, 3))} if i else ()) for i in range(count)
    ]
    costs = [None if rng.random() < 0.2 else rng.randint(1, 1000) for _ in range(count)]
    return Problem(
        sizes=tuple(rng.randint(1, 1000) for _ in range(count)),
        makers=tuple(range(count)),
        costs=tuple(costs),
        reads=tuple(() if cost is None else read for read, cost in zip(reads, costs, strict=True)),
        wanted=tuple(sorted(rng.sample(range(count), count // 4))),
    )


@pytest.mark.parametrize("seed", range(3))
def test_five_thousand_jobs(seed: int) -> None:
    assert solve_cut(_many_nodes(seed, 5000)).recomputed
    assert growth(lambda count: partial(solve_cut, _many_nodes(seed, count)), 500, 8) < LINEAR
