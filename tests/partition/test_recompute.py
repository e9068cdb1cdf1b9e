"""Backward with copies of forward nodes: where they stand, what they read, and what forward drops."""

from __future__ import annotations

from dovetail.ir.program import Phase, Program
from dovetail.ir.signature import Gradient, InputMutation, UserOutput, WriteKind
from dovetail.ir.stages import verify_program
from dovetail.partition.check_recompute import verify_recomputation
from dovetail.partition.recompute import keeps_named, split_keeping
from dovetail.partition.split import Split, split_by_phase
from dovetail.pipeline.driver import writes
from tests.partition.joint_programs import POINTWISE, PRODUCT, VIEW, Maker, random_program


def _program() -> Program:
    """x -> a -> b -> view; backward reads a tangent, then the view, then b."""
    maker = Maker({"x": 8})
    (a,) = maker.apply(PRODUCT, *maker.inputs * 2)
    (b,) = maker.apply(POINTWISE, a, a)
    (view,) = maker.apply(VIEW, b)
    (loss,) = maker.apply(POINTWISE, a, b, sizes=(1,))
    tangent = maker.tangent(8)
    (g,) = maker.apply(POINTWISE, tangent, tangent, late=True)
    (h,) = maker.apply(POINTWISE, g, view, late=True)
    (k,) = maker.apply(POINTWISE, h, b, late=True)
    return maker.program([(UserOutput(0), loss), (Gradient(0), k)])


def _text(split: Split) -> list[str]:
    return [
        f"{', '.join(v.name for v in node.results())} = {', '.join(v.name for v in node.operands())}"
        for node in split.backward.nodes
    ]


def _keeping(program: Program, *names: str) -> Split:
    split = split_keeping(program, lambda value: value.name in names)
    verify_recomputation(program, split)
    for half in (split.forward, split.backward):
        verify_program(half, writes)
    return split


def test_a_copy_stands_right_before_its_first_reader() -> None:
    split = _keeping(_program(), "v0_0")
    assert split.residuals == split.sources == ("v0_0",)
    assert _text(split) == [
        "v4_0 = tangent, tangent",
        "v1_0_again = v0_0, v0_0",
        "v2_0_again = v1_0_again",
        "v5_0 = v4_0, v2_0_again",
        "v6_0 = v5_0, v1_0_again",
    ]


def test_backward_views_lie_in_what_was_made_again() -> None:
    maker = Maker({"x": 8})
    (a,) = maker.apply(PRODUCT, *maker.inputs * 2)
    (b,) = maker.apply(POINTWISE, a, a)
    (loss,) = maker.apply(POINTWISE, a, b, sizes=(1,))
    (view,) = maker.apply(VIEW, b, late=True)
    (recomputed,) = maker.apply(VIEW, view, late=True)
    (g,) = maker.apply(POINTWISE, maker.tangent(8), recomputed, late=True)
    program = maker.program([(UserOutput(0), loss), (Gradient(0), g)])
    split = _keeping(program, "v0_0")
    copy, *views = (v for node in split.backward.nodes[:3] for v in node.results())
    assert [v.name for v in (copy, *views)] == ["v1_0_again", "v3_0", "v4_0"]
    assert {v.tensor.storage for v in views} == {copy.tensor.storage} != {b.tensor.storage}


def test_copies_lie_in_memory_of_their_own_and_views_in_it() -> None:
    program = _program()
    base, view = (v for node in _keeping(program, "v0_0").backward.nodes[1:3] for v in node.results())
    known = {v.tensor.storage for node in program.nodes for v in node.results()}
    assert base.tensor.storage == view.tensor.storage
    assert base.tensor.storage not in known


def test_copies_are_marked_and_late() -> None:
    copies = _keeping(_program(), "v0_0").backward.nodes[1:3]
    assert all(node.recomputed and node.phase is Phase.BACKWARD for node in copies)


def test_forward_drops_what_only_backward_read() -> None:
    assert [node.outputs[0].name for node in _keeping(_program(), "v0_0").forward.nodes if node.outputs[0]] == [
        "v0_0",
        "v1_0",
        "v3_0",
    ]


def test_from_inputs_alone() -> None:
    split = _keeping(_program())
    assert split.residuals == ("x",)
    assert len(split.backward.nodes) == 6


def test_a_view_of_what_is_saved_is_made_again() -> None:
    split = _keeping(_program(), "v1_0")
    assert split.residuals == ("v1_0",)
    assert _text(split)[1] == "v2_0_again = v1_0"


def test_all_saved_is_the_default_split() -> None:
    program = _program()
    default = split_by_phase(program)
    split = split_keeping(program, lambda value: True)
    assert (split.residuals, split.sources) == (default.residuals, ())
    assert (split.forward.nodes, split.backward.nodes) == (default.forward.nodes, default.backward.nodes)


def test_deep_chains_need_no_recursion() -> None:
    maker = Maker({"x": 8})
    (v,) = maker.inputs
    for _ in range(5000):
        (v,) = maker.apply(POINTWISE, v)
    tangent = maker.tangent(8)
    (g,) = maker.apply(POINTWISE, tangent, v, late=True)
    split = _keeping(maker.program([(Gradient(0), g)]))
    assert len(split.backward.nodes) == 5001
    assert split.forward.nodes == ()


def test_what_a_name_says_is_kept_and_the_rest_follows_from_it() -> None:
    program = _program()
    keeps = keeps_named(program, {"v0_0"})
    kept = [v.name for node in program.nodes[:4] for v in node.results() if keeps(v)]
    assert kept == ["v0_0"]


def test_a_value_that_nothing_saved_leads_to_stays_a_residual() -> None:
    program = _program()
    split = split_keeping(program, keeps_named(program, {"unknown"}))
    assert split.residuals == split_by_phase(program).residuals


def test_nothing_follows_from_an_input_that_is_written() -> None:
    maker = Maker({"x": 8})
    (a,) = maker.apply(POINTWISE, *maker.inputs)
    tangent = maker.tangent(8)
    (g,) = maker.apply(POINTWISE, tangent, a, late=True)
    program = maker.program([(InputMutation(0, WriteKind.UNTRACKED), a), (Gradient(0), g)])
    assert keeps_named(program, {"x"})(a)


def test_random_programs_keep_their_outputs() -> None:
    for seed in range(100):
        program = random_program(seed)
        names = [value.name for node in program.nodes[::2] for value in node.results()]
        split = split_keeping(program, keeps_named(program, [*names, "x"]))
        assert (*split.forward.outputs[: -len(split.residuals) or None], *split.backward.outputs) == program.outputs
