"""The plan copies as few bytes as the best of all combinations of what could be done in place."""

from __future__ import annotations

from dovetail.ir.fx_lift import lift
from dovetail.passes.inplace import apply_plan, choose_plan
from tests.passes.inplace_oracle import ask, copied_bytes, survey
from tests.passes.patterns import PATTERNS
from tests.passes.patterns.trace import traced


def test_plans_copy_the_least_number_of_bytes() -> None:
    asked, behind = survey((), most=8, combinations=300)
    assert asked >= 200
    assert len(behind) <= 0.05 * asked, "\n".join(behind)


def test_oracle_finds_what_a_plan_misses() -> None:
    pattern = next(p for p in PATTERNS if p.name == "cache: select a place")
    program = lift(traced(pattern, "mutations"), pattern.inputs()).program
    left_alone = copied_bytes(program)
    answer = ask(pattern, "mutations", most=8, combinations=300)
    assert answer is not None
    assert answer.least == answer.reached == copied_bytes(apply_plan(choose_plan(program)))
    assert answer.reached < left_alone / 10
