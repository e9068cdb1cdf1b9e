"""Which operands may be overwritten by the operator that reads them last."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import dovetail
from dovetail.errors import InvalidProgram
from dovetail.ir.program import Stage
from dovetail.ir.stages import verify_program
from dovetail.passes.reuse_buffers import ReuseReport, reuse_buffers
from dovetail.pipeline.driver import writes
from tests.passes.programs import Builder, body

aten = torch.ops.aten


def test_before_and_after() -> None:
    b = Builder("x")
    (x,) = b.inputs
    made = b.call("made", aten.mm.default, x, x)
    scaled = b.call("scaled", aten.mul.Tensor, made, 2)
    result = b.call("result", aten.relu.default, scaled)
    before = b.program(result)
    after, report = reuse_buffers(before)
    assert body(after) == [
        "made = mm.default(x, x)",
        "scaled = mul_.Tensor(made, 2)",
        "result = relu_.default(scaled)",
        "return (result,)",
    ]
    assert report == ReuseReport((("scaled", "made"), ("result", "scaled")), 32)
    assert after.stage is Stage.IN_PLACE
    assert len({v.tensor.storage for node in after.nodes for v in node.results()}) == 1
    assert before.nodes[1].target is aten.mul.Tensor


def _kept(program: object) -> bool:
    after, report = reuse_buffers(program)  # type: ignore[arg-type]
    return after is program and report.reused == ()


def test_the_memory_of_inputs_is_never_written() -> None:
    b = Builder("x")
    view = b.call("view", aten.view.default, b.inputs[0], [4], view_of=b.inputs[0])
    assert _kept(b.program(b.call("a", aten.sin.default, view)))


def test_an_operand_that_is_read_later_stays() -> None:
    b = Builder("x")
    made = b.call("made", aten.mm.default, b.inputs[0], b.inputs[0])
    first = b.call("first", aten.sin.default, made)
    assert _kept(b.program(first, b.call("second", aten.mm.default, made, made)))


def test_an_operand_whose_view_is_read_later_stays() -> None:
    b = Builder("x")
    made = b.call("made", aten.mm.default, b.inputs[0], b.inputs[0])
    view = b.call("view", aten.view.default, made, [4], view_of=made)
    first = b.call("first", aten.sin.default, made)
    assert _kept(b.program(first, b.call("second", aten.mm.default, view, view)))


def test_an_operand_that_is_returned_or_saved_stays() -> None:
    b = Builder("x")
    made = b.call("made", aten.mm.default, b.inputs[0], b.inputs[0])
    assert _kept(b.program(made, b.call("a", aten.sin.default, made)))


def test_an_operand_that_is_read_twice_by_the_operator_stays() -> None:
    b = Builder("x")
    made = b.call("made", aten.mm.default, b.inputs[0], b.inputs[0])
    assert _kept(b.program(b.call("a", aten.mul.Tensor, made, made)))


def test_a_part_of_a_storage_stays() -> None:
    b = Builder("x")
    made = b.call("made", aten.mm.default, b.inputs[0], b.inputs[0], shape=(8,))
    part = b.call("part", aten.slice.Tensor, made, 0, 0, 4, view_of=made)
    assert _kept(b.program(b.call("a", aten.sin.default, part)))


@pytest.mark.parametrize("changes", [{"dtype": torch.float64}, {"shape": (2, 4)}, {"shape": (2, 2)}, {"stride": (2,)}])
def test_a_result_of_another_layout_needs_memory_of_its_own(changes: dict[str, object]) -> None:
    b = Builder("x")
    made = b.call("made", aten.mm.default, b.inputs[0], b.inputs[0])
    assert _kept(b.program(b.call("a", aten.sin.default, made, **changes)))  # type: ignore[arg-type]


def test_an_expanded_operand_stays() -> None:
    b = Builder("x")
    made = b.call("made", aten.full.default, [4], 1, stride=(0,))
    assert _kept(b.program(b.call("a", aten.sin.default, made, stride=(0,))))


def test_operators_that_are_not_elementwise_stay() -> None:
    b = Builder("x")
    made = b.call("made", aten.mm.default, b.inputs[0], b.inputs[0])
    assert _kept(b.program(b.call("a", aten.cumsum.default, made, 0)))


def test_the_functional_stage_refuses_what_the_pass_makes() -> None:
    b = Builder("x")
    made = b.call("made", aten.mm.default, b.inputs[0], b.inputs[0])
    after, _ = reuse_buffers(b.program(b.call("a", aten.sin.default, made)))
    verify_program(after, writes)
    with pytest.raises(InvalidProgram, match="no operator writes an operand"):
        verify_program(dataclasses.replace(after, stage=Stage.FUNCTIONAL), writes)


def test_an_in_place_relu_is_in_place_again() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = torch.nn.functional.relu(x @ w, inplace=True)
        y += 1
        return y @ w

    x = torch.randn(4, 4)
    compiled = dovetail.compile(f, (x, x))
    assert "relu_()" in compiled.graphs[0].forward.source
    assert "add_(1)" in compiled.graphs[0].forward.source
    assert torch.equal(compiled(x, x), f(x, x))
