"""Bounded sums of multiples against brute force, by each step alone; hard cases in bounded work."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.analysis import diophantine
from dovetail.analysis.diophantine import Answer, Budget, Step, Term, are_distinct, solve
from tests.counting import steps_of

_TERMS = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 5)), max_size=4, unique_by=lambda term: term[0])


def _reaches(terms: list[Term], low: int, high: int) -> bool:
    sums = {0}
    for coefficient, count in terms:
        sums = {total + coefficient * k for total in sums for k in range(count + 1)}
    return any(low <= total <= high for total in sums)


@pytest.fixture(params=["all steps", "no search", "no bit sets"])
def _steps(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "no search":
        monkeypatch.setattr(diophantine._Search, "run", lambda self, low, high: None)
    elif request.param == "no bit sets":
        monkeypatch.setattr(diophantine, "BITSET_UNITS", 0)


@pytest.mark.usefixtures("_steps")
def test_every_step_agrees_with_brute_force() -> None:
    @settings(max_examples=1000, deadline=None)
    @given(_TERMS, st.sampled_from((1, 1, 3, 4)), st.integers(-5, 200), st.sampled_from((0, 0, 1, 3, 10)))
    def check(terms: list[Term], scale: int, low: int, width: int) -> None:
        terms = [(coefficient * scale, count) for coefficient, count in sorted(terms)]
        assert solve(terms, low, low + width).solvable is _reaches(terms, low, low + width)

    check()


@pytest.mark.parametrize(
    ("terms", "low", "high", "expected"),
    [
        ([], 0, 0, Answer(True, Step.ABSORPTION)),
        ([], 1, 2, Answer(False, Step.INTERVAL)),
        ([(4, 3)], 13, 20, Answer(False, Step.INTERVAL)),
        ([(4, 3), (8, 2)], 5, 7, Answer(False, Step.GCD)),
        ([(1, 3), (10, 5)], 24, 29, Answer(False, Step.ABSORPTION)),
        ([(1, 3), (10, 5), (100, 2)], 123, 123, Answer(True, Step.ABSORPTION)),
        ([(6, 4), (10, 4), (15, 4)], 29, 29, Answer(False, Step.SEARCH)),
        ([(6, 4), (10, 4), (15, 4)], 31, 31, Answer(True, Step.SEARCH)),
    ],
)
def test_the_step_that_decides(terms: list[Term], low: int, high: int, expected: Answer) -> None:
    assert solve(terms, low, high) == expected


def test_a_case_that_takes_a_search_minutes_takes_few_steps() -> None:
    # Example of numpy.shares_memory: strides (36674, 61119, 85569) against (12223, 12224), 1,049 elements each.
    terms = [(stride, 1048) for stride in (12223, 12224, 36674, 61119, 85569)]
    low = 64023025 + 1048 * (12223 + 12224)
    budget = Budget(1e9)
    answers: list[Answer] = []
    steps = steps_of(lambda: answers.append(solve(terms, low, low, budget)))
    assert answers == [Answer(False, Step.BITSET)]
    assert steps < 200_000  # a search alone makes more than 10 million visits
    assert 1e9 - budget.left < 1_000_000  # microseconds, as the analysis estimates them


def test_bit_sets_agree_with_the_search_on_large_sums() -> None:
    choose = random.Random(0)
    decided = 0
    for _ in range(60):
        terms = sorted({choose.randint(1, 3000): choose.randint(1, 40) for _ in range(choose.randint(3, 5))}.items())
        total = sum(coefficient * count for coefficient, count in terms)
        low = choose.randint(1, total - 1)
        found = diophantine._Search(terms, 100_000).run(low, low)
        if found is not None:
            assert diophantine._bitsets_meet(terms, low, low) is found
            decided += 1
    assert decided > 30


@settings(max_examples=500, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 4)), max_size=4), st.sampled_from((1, 2, 3)))
def test_sums_are_counted(terms: list[Term], run: int) -> None:
    sums = list(range(run))
    for coefficient, count in terms:
        sums = [total + coefficient * k for total in sums for k in range(count + 1)]
    assert are_distinct(terms, run).solvable is (len(set(sums)) == len(sums))


def test_counting_has_a_limit() -> None:
    assert are_distinct([(7, 3), (1 << 28, 2)], 1) == Answer(None, Step.WORK_LIMIT)
    assert are_distinct([(7, 3), (1 << 20, 2)], 1, Budget(10)) == Answer(None, Step.WORK_LIMIT)
    assert are_distinct([(7 << 10, 3), (1 << 28, 2)], 1 << 10) == Answer(True, Step.BITSET)


def test_sums_too_large_for_bit_sets_are_given_up() -> None:
    terms = [(stride * 1000 + 1, 5000) for stride in (12223, 12224, 36674, 61119, 85569)]
    low = sum(coefficient * count for coefficient, count in terms) // 2 + 1
    budget = Budget(1e9)
    answer = solve(terms, low, low, budget)
    assert 1e9 - budget.left < 1_000_000
    assert (answer.solvable is None) == (answer.step is Step.WORK_LIMIT)


def test_a_budget_is_drawn_on_and_ends_the_work() -> None:
    terms = [(stride, 1048) for stride in (12223, 12224, 36674, 61119, 85569)]
    low = 64023025 + 1048 * (12223 + 12224)
    budget = Budget(1000)
    assert solve(terms, low, low, budget) == Answer(None, Step.WORK_LIMIT)
    assert budget.left < 10
    plenty = Budget(10_000_000)
    assert solve(terms, low, low, plenty).step is Step.BITSET
    assert 0 < plenty.left < 9_900_000
