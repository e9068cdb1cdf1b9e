"""Dead code: what goes, and what only looks as if it could go."""

from __future__ import annotations

import torch

from dovetail.ir.program import Node, Phase, ScalarMeta, Value
from dovetail.ir.sizes import symbol
from dovetail.ops import prims
from dovetail.passes.dead_code import DeadCodeReport, remove_dead_code
from tests.passes.programs import Builder, body

aten = torch.ops.aten


def test_before_and_after() -> None:
    b = Builder("x")
    (x,) = b.inputs
    a = b.call("a", aten.sin.default, x)
    unread = b.call("b", aten.cos.default, x)
    b.call("c", aten.exp.default, unread)
    d = b.call("d", aten.mul.Tensor, a, a)
    before = b.program(d)
    after, report = remove_dead_code(before)
    assert body(before) == [
        "a = sin.default(x)",
        "b = cos.default(x)",
        "c = exp.default(b)",
        "d = mul.Tensor(a, a)",
        "return (d,)",
    ]
    assert body(after) == ["a = sin.default(x)", "d = mul.Tensor(a, a)", "return (d,)"]
    assert report == DeadCodeReport(("b", "c"))
    assert str(report) == "removed 2 unread nodes"
    assert len(before.nodes) == 4


def test_what_is_only_a_model_goes() -> None:
    """The gradient of a sum begins with ones like it: they do not need the sum."""
    b = Builder("x")
    total = b.call("total", aten.sum.default, b.inputs[0], shape=())
    ones = b.call("ones", aten.ones_like.default, total, shape=())
    row = b.call("row", aten.new_full.default, total, [2], 3, shape=(2,), dtype=torch.int64)
    after, report = remove_dead_code(b.program(ones, row))
    assert [(str(node.target), node.args, dict(node.kwargs)["dtype"]) for node in after.nodes] == [
        ("aten.ones.default", ([],), torch.float32),
        ("aten.full.default", ([2], 3), torch.int64),
    ]
    assert report.removed == ("total",)


def test_a_model_that_is_read_or_lies_otherwise_stays() -> None:
    b = Builder("x")
    total = b.call("total", aten.sum.default, b.inputs[0], shape=())
    ones = b.call("ones", aten.ones_like.default, total, shape=())
    turned = b.call("turned", aten.mm.default, b.inputs[0], b.inputs[0], shape=(3, 4), stride=(1, 3))
    zeros = b.call("zeros", aten.zeros_like.default, turned, shape=(3, 4), stride=(1, 3))
    program = b.program(ones, b.call("more", aten.neg.default, total, shape=()), zeros)
    assert remove_dead_code(program)[0] is program


def test_nothing_to_remove_gives_the_same_program() -> None:
    b = Builder("x")
    program = b.program([b.call("a", aten.sin.default, b.inputs[0])])
    after, report = remove_dead_code(program)
    assert after is program
    assert report.removed == ()


def test_draws_effects_and_writes_stay() -> None:
    b = Builder("x")
    (x,) = b.inputs
    b.call("drawn", aten.rand_like.default, x)
    b.call("dropped", aten.native_dropout.default, x, 0.5, True)
    b.nodes.append(Node(prims.MANUAL_SEED, (3,)))
    b.nodes.append(Node(aten._assert_async.default, (x,)))
    b.nodes.append(Node(aten.mul_.Tensor, (x, 2)))
    b.call("opaque", print, x)
    program = b.program(x)
    assert remove_dead_code(program)[0] is program


def test_what_a_kept_draw_reads_stays() -> None:
    b = Builder("x")
    (x,) = b.inputs
    a = b.call("a", aten.sigmoid.default, x)
    b.call("drawn", aten.bernoulli.default, a)
    program = b.program(x)
    assert remove_dead_code(program)[0] is program


def test_an_unread_look_at_the_generator_goes() -> None:
    b = Builder()
    b.call("state", prims.GET_RNG_STATE)
    assert body(remove_dead_code(b.program())[0]) == ["return ()"]


def test_one_read_result_of_several_keeps_the_node() -> None:
    b = Builder("x")
    values, indices = b.value("values"), b.value("indices")
    b.nodes.append(Node(aten.topk.default, (b.inputs[0], 2), outputs=(values, indices), unpack=True))
    program = b.program(indices)
    assert remove_dead_code(program)[0] is program


def test_a_number_stays_while_a_size_mentions_its_symbol() -> None:
    b = Builder("x")
    number = Value("item", ScalarMeta(symbol("u0")))
    b.nodes.append(Node(aten._local_scalar_dense.default, (b.inputs[0],), outputs=(number,)))
    kept = b.program(b.call("a", aten.ones.default, [symbol("u0")]))
    assert remove_dead_code(kept)[0] is kept
    assert body(remove_dead_code(b.program())[0]) == ["return ()"]
    by_output = b.program(symbol("u0"))
    assert [node.target for node in remove_dead_code(by_output)[0].nodes] == [aten._local_scalar_dense.default]


def test_backward_nodes_are_judged_alike() -> None:
    b = Builder("x", "tangent")
    x, tangent = b.inputs
    a = b.call("a", aten.sin.default, x)
    b.late("unread", aten.mul.Tensor, tangent, a)
    g = b.late("g", aten.neg.default, tangent)
    after, _ = remove_dead_code(b.program(x, g))
    assert [node.phase for node in after.nodes] == [Phase.BACKWARD]
