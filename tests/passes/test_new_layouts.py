"""What follows when values have a different layout: who keeps what it gave, and who cannot follow."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dovetail.analysis.infer import MetaInference
from dovetail.analysis.new_nodes import NodeMaker
from dovetail.ir.draft import Draft
from dovetail.ir.program import Program, Value
from dovetail.ir.sizes import symbol
from dovetail.ops import prims
from dovetail.passes.new_layouts import Blocked, Followed, follow
from dovetail.torch_compat.fakes import new_fake_mode
from tests.passes.programs import Builder

aten = torch.ops.aten


def _with_gaps(b: Builder, *outputs: Value) -> tuple[Program, NodeMaker, Value]:
    """The program, and what a value f32[4] is with gaps of one element."""
    program = b.program(*outputs)
    make = NodeMaker(Draft(program), MetaInference(new_fake_mode(), {}))
    wide = make.call(aten.empty.memory_format, ([8],), name="wide").results()[0]
    return program, make, make.call(aten.slice.Tensor, (wide, 0, 0, 8, 2), name="gaps").results()[0]


def test_views_follow_and_fresh_results_stay() -> None:
    b = Builder("x", "other")
    made = b.call("made", aten.sin.default, b.inputs[0])
    view = b.call("view", aten.unsqueeze.default, made, 0, view_of=made, shape=(1, 4))
    fresh = b.call("fresh", aten.exp.default, view, shape=(1, 4))
    last = b.call("last", aten.neg.default, fresh, shape=(1, 4))
    program, make, gaps = _with_gaps(b, last)
    followed = follow(program, {made: gaps}, make)
    assert isinstance(followed, Followed)
    _, shown, kept, _ = program.nodes
    assert set(followed.nodes) == {shown, kept}
    moved = followed.nodes[shown].outputs[0]
    assert moved is not None
    assert (moved.tensor.stride, moved.tensor.storage) == ((8, 2), gaps.tensor.storage)
    assert followed.nodes[kept].args == (moved,)
    assert followed.nodes[kept].outputs == (fresh,)


def test_a_fresh_result_that_lies_otherwise_is_followed() -> None:
    b = Builder("x")
    made = b.call("made", aten.sin.default, b.inputs[0], shape=(2, 2))
    fresh = b.call("fresh", aten.exp.default, made, shape=(2, 2))
    view = b.call("view", aten.t.default, fresh, view_of=fresh, shape=(2, 2), stride=(1, 2))
    program = b.program(b.call("last", aten.sum.default, view, shape=()))
    make = NodeMaker(Draft(program), MetaInference(new_fake_mode(), {}))
    base = make.call(aten.empty.memory_format, ([2, 2],), name="base").results()[0]
    turned = make.call(aten.t.default, (base,), name="turned").results()[0]
    followed = follow(program, {made: turned}, make)
    assert isinstance(followed, Followed)
    strides = [followed.nodes[node].results()[0].tensor.stride for node in program.nodes[1:]]
    assert strides == [(1, 2), (2, 1), ()]
    assert followed.nodes[program.nodes[3]].outputs == program.nodes[3].outputs


@pytest.mark.parametrize(
    ("target", "args", "code"),
    [
        (aten.view.default, ([2, 2],), ""),
        (aten.view.dtype, (torch.float64,), "VIEW-NEEDS-CONTIGUOUS"),
        (aten.as_strided.default, ([2], [1]), "READS-PLACE"),
        (aten.as_strided_copy.default, ([2], [1]), "READS-PLACE"),
        (aten.relu_.default, (), "WRITTEN"),
        (prims.COPY_TO_LAYOUT, ((4,), (1,)), "OPAQUE-READER"),
        (aten.nonzero.default, (), "OPAQUE-READER"),
        (torch.ops.prims.neg.default, (), "OPAQUE-READER"),
    ],
)
def test_readers_that_cannot_follow(target: Any, args: tuple[object, ...], code: str) -> None:
    b = Builder("x")
    made = b.call("made", aten.sin.default, b.inputs[0])
    shape: Any = (2, 2)
    if target is aten.nonzero.default:
        shape = (symbol("u0"), 1)
    b.call("read", target, made, *args, shape=shape)
    program, make, gaps = _with_gaps(b)
    followed = follow(program, {made: gaps}, make)
    if not code:
        assert isinstance(followed, Followed)
        return
    assert isinstance(followed, Blocked)
    assert followed.code == code
    assert followed.sources == {made}
    assert followed.because.startswith("made is ")


def test_what_is_returned_stays() -> None:
    b = Builder("x", "y")
    made = b.call("made", aten.sin.default, b.inputs[0])
    view = b.call("view", aten.unsqueeze.default, made, 0, view_of=made, shape=(1, 4))
    program, make, gaps = _with_gaps(b, view)
    followed = follow(program, {made: gaps}, make)
    assert isinstance(followed, Blocked)
    assert followed.because == "the program returns view, whose strides and memory must be those of eager"
    assert followed.sources == {made}
