"""When computing again is chosen, by what a step is predicted to need."""

from __future__ import annotations

import math

from dovetail.analysis.liveness import simulate_peak
from dovetail.ir.program import Program
from dovetail.ir.signature import Gradient, UserOutput
from dovetail.partition.choose import choose_split, cut_within, joined, residual_bytes, step_cost
from dovetail.partition.policy import Policy
from dovetail.partition.split import split_by_phase
from tests.partition.joint_programs import POINTWISE, PRODUCT, VIEW, Maker


def _layers(count: int) -> Program:
    """Layers of a product and a pointwise node; backward reads what both make."""
    maker = Maker({"x": 100})
    (v,) = maker.inputs
    w = v
    made = []
    for _ in range(count):
        (a,) = maker.apply(PRODUCT, v, w, sizes=(100,))
        (v,) = maker.apply(POINTWISE, a, sizes=(100,))
        made += [a, v]
    (loss,) = maker.apply(PRODUCT, v, v, sizes=(1,))
    (g,) = maker.apply(POINTWISE, maker.tangent(1), v, sizes=(100,), late=True)
    for v in reversed(made):
        (g,) = maker.apply(PRODUCT, g, v, sizes=(100,), late=True)
    return maker.program([(UserOutput(0), loss), (Gradient(0), g)])


def test_the_cut_halves_what_is_saved() -> None:
    program = _layers(4)
    split, report = choose_split(program, Policy(), {})
    assert (report.default.saved_bytes, report.chosen.saved_bytes) == (800, 400)
    assert report.chosen.peak_bytes < report.default.peak_bytes
    assert (report.recomputed, report.reason) == (4, "")
    assert report.chosen == step_cost(program, split, {})
    assert str(report).startswith("4 nodes run again: default saves 800 bytes, peak ")


def test_where_it_moves_too_many_bytes_there_is_no_cut() -> None:
    program = _layers(4)
    work = step_cost(program, split_by_phase(program), {}).work
    assert cut_within(program, Policy(), {}, 0.02 * work) is None
    assert cut_within(program, Policy(), {}, work) is not None


def test_what_is_cheap_runs_again_and_what_is_dear_does_not() -> None:
    maker = Maker({"x": 100_000})
    (x,) = maker.inputs
    for _ in range(20):
        (x,) = maker.apply(PRODUCT, x, x, sizes=(100_000,))
    made = [x]
    for size in (100_000, 1000):  # layers as in _layers, wide ones and narrow ones
        for _ in range(2):
            (a,) = maker.apply(PRODUCT, x, x, sizes=(size,))
            (x,) = maker.apply(POINTWISE, a, sizes=(size,))
            made += [a, x]
    (loss,) = maker.apply(PRODUCT, x, x, sizes=(1,))
    (g,) = maker.apply(PRODUCT, maker.tangent(1), loss, sizes=(10,), late=True)
    for value in reversed(made):
        (g,) = maker.apply(PRODUCT, g, value, sizes=(10,), late=True)
    program = maker.program([(UserOutput(0), loss), (Gradient(0), g)])
    default = step_cost(program, split_by_phase(program), {})
    asked, unasked = (cut_within(program, Policy(), {}, most) for most in (math.inf, 0.02 * default.work))
    assert asked is not None
    assert unasked is not None
    all_of_it, some = step_cost(program, asked, {}), step_cost(program, unasked, {})
    assert all_of_it.saved_bytes < some.saved_bytes < default.saved_bytes
    assert some.work <= 1.02 * default.work < all_of_it.work


def test_a_peak_that_rises_keeps_the_default_split() -> None:
    maker = Maker({"x": 1000})
    (x,) = maker.inputs
    (small,) = maker.apply(POINTWISE, x, sizes=(10,))
    (large,) = maker.apply(POINTWISE, small, sizes=(1000,))
    (wide,) = maker.apply(POINTWISE, large, sizes=(11,))
    (other,) = maker.apply(POINTWISE, wide, sizes=(1,))
    (g,) = maker.apply(POINTWISE, maker.tangent(1), sizes=(500,), late=True)
    (h,) = maker.apply(POINTWISE, g, wide, sizes=(500,), late=True)
    split, report = choose_split(maker.program([(UserOutput(0), other), (Gradient(0), h)]), Policy(), {})
    assert report.chosen.saved_bytes < report.default.saved_bytes
    assert report.reason.startswith("PEAK-RISES: ")
    assert split.residuals == ("v2_0",)


def test_where_all_is_saved_anyway_there_is_nothing_to_gain() -> None:
    maker = Maker({"x": 8})
    (g,) = maker.apply(POINTWISE, maker.tangent(8), *maker.inputs, late=True)
    _, report = choose_split(maker.program([(Gradient(0), g)]), Policy("all"), {})
    assert report.reason.startswith("NOTHING-TO-GAIN")


def test_views_of_one_residual_count_once_and_outputs_do_not() -> None:
    maker = Maker({"x": 8})
    (a,) = maker.apply(PRODUCT, *maker.inputs, sizes=(32,))
    (view,) = maker.apply(VIEW, a, sizes=(32,))
    (out,) = maker.apply(PRODUCT, view, sizes=(64,))
    (g,) = maker.apply(POINTWISE, maker.tangent(64), a, view, out, *maker.inputs[:1], late=True)
    program = maker.program([(UserOutput(0), out), (Gradient(0), g)])
    assert residual_bytes(split_by_phase(program), {}) == 32


def test_both_halves_are_one_program_again() -> None:
    program = _layers(2)
    split = split_by_phase(program)
    assert joined(program, split).nodes == program.nodes
    assert step_cost(program, split, {}).peak_bytes == simulate_peak(program).peak_bytes
