"""Which pieces of memory are chosen among, and what is free."""

from __future__ import annotations

from dovetail.ir.program import Program
from dovetail.ir.signature import Gradient, InputMutation, UserOutput, WriteKind
from dovetail.partition.choose import split_by_cut
from dovetail.partition.policy import Mark, Policy
from dovetail.partition.problem import FREE, UNAVAILABLE, Problem, build_problem, written_storages
from dovetail.partition.work import CPU
from tests.partition.joint_programs import DRAW, POINTWISE, PRODUCT, VIEW, Maker


def _program(writes_x: bool = False) -> Program:
    """x -> a (product) -> view -> b (pointwise) -> c (pointwise, returned); backward reads the view, b and c."""
    maker = Maker({"x": 8, "w": 8})
    x, w = maker.inputs
    (a,) = maker.apply(PRODUCT, x, w, sizes=(16,))
    (view,) = maker.apply(VIEW, a, sizes=(16,))
    (b,) = maker.apply(POINTWISE, view, w, sizes=(4,))
    (c,) = maker.apply(POINTWISE, b, b, sizes=(4,))
    tangent = maker.tangent(4)
    (g,) = maker.apply(POINTWISE, tangent, view, late=True)
    (h,) = maker.apply(POINTWISE, g, b, late=True)
    (k,) = maker.apply(POINTWISE, h, c, late=True)
    written = [(InputMutation(0, WriteKind.UNTRACKED), b)] if writes_x else []
    return maker.program([(UserOutput(0), c), *written, (Gradient(0), k)])


def _homes(program: Program, policy: Policy) -> dict[str, int]:
    return {value.name: home for value, home in build_problem(program, policy, {}).homes.items()}


def _moved(problem: Problem) -> tuple[int | None, ...]:
    """What nodes cost beside their calls."""
    return tuple(None if cost is None else cost - CPU.bytes_per_call for cost in problem.costs)


def test_items_jobs_and_what_is_free() -> None:
    program = _program()
    problem = build_problem(program, Policy("all"), {}).problem
    assert problem.sizes == (16, 4)
    assert problem.makers == (0, 1)
    assert _moved(problem) == (8 + 8 + 16, 16 + 8 + 4, 4 + 4)
    assert problem.reads == ((), (0,), (1,))
    assert problem.wanted == (0, 1)
    assert _homes(program, Policy("all")) == {
        "x": FREE,
        "w": FREE,
        "tangent": FREE,
        "v0_0": 0,
        "v1_0": 0,
        "v2_0": 1,
        "v3_0": FREE,
    }


def test_only_cheap_jobs_run_by_default() -> None:
    assert _moved(build_problem(_program(), Policy(), {}).problem) == (None, 28, 8)


def test_an_input_that_is_written_is_not_read_again() -> None:
    program = _program(writes_x=True)
    assert written_storages(program) == {0}
    built = build_problem(program, Policy("all"), {})
    assert _moved(built.problem) == (None, 28, 8)
    assert _homes(program, Policy("all"))["x"] == UNAVAILABLE
    assert _homes(program, Policy("all"))["v2_0"] == FREE  # the default split saves it, too


def test_marks() -> None:
    program = _program()
    product, view, pointwise, _, *_ = program.nodes
    marked = Policy("all", {product: Mark.MUST_RECOMPUTE, pointwise: Mark.MUST_SAVE})
    problem = build_problem(program, marked, {}).problem
    assert (problem.sizes, _moved(problem)) == ((None, 4), (32, None, 8))
    assert build_problem(program, Policy(marks={view: Mark.MUST_SAVE}), {}).problem.sizes == (16, 16, 4)


def test_a_mark_does_not_repeat_a_draw() -> None:
    maker = Maker({"x": 8})
    (mask,) = maker.apply(DRAW, maker.inputs[0])
    tangent = maker.tangent(8)
    (g,) = maker.apply(POINTWISE, tangent, mask, late=True)
    program = maker.program([(Gradient(0), g)])
    marks = {program.nodes[0]: Mark.MUST_RECOMPUTE}
    problem = build_problem(program, Policy("all", marks), {}).problem
    assert (problem.sizes, _moved(problem)) == ((8,), (None,))


def test_only_what_eager_holds_is_there_later() -> None:
    """x -> a -> b -> c, returned; backward reads b and the first input, and eager keeps no other."""
    maker = Maker({"x": 8, "y": 8})
    x, y = maker.inputs
    (a,) = maker.apply(POINTWISE, x, x)
    (b,) = maker.apply(POINTWISE, y, y)
    (c,) = maker.apply(POINTWISE, a, b)
    (d,) = maker.apply(POINTWISE, c, c)
    (g,) = maker.apply(POINTWISE, maker.tangent(8), a, late=True)
    for value in (b, x, d):
        (g,) = maker.apply(POINTWISE, g, value, late=True)
    program = maker.program([(UserOutput(0), c), (Gradient(0), g)])
    free, strict = (_homes(program, Policy(only_what_eager_holds=strict)) for strict in (False, True))
    assert (free["x"], free["y"], free["v2_0"]) == (FREE, FREE, FREE)
    assert (strict["x"], strict["y"], strict["v2_0"]) == (FREE, UNAVAILABLE, UNAVAILABLE)
    costs = build_problem(program, Policy(only_what_eager_holds=True), {}).problem.costs
    assert [cost is None for cost in costs] == [False, True, False, True]
    split = split_by_cut(program, Policy(only_what_eager_holds=True), {})
    assert split.residuals == ("x", "v1_0", "v3_0")
