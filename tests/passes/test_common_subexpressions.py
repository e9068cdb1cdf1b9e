"""Common subexpressions: equal nodes, and nodes that only look equal."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import dovetail
from dovetail.ir.program import Node, Phase
from dovetail.ir.sizes import SizeExpr, symbol
from dovetail.ops import prims
from dovetail.ops.custom import define
from dovetail.passes.common_subexpressions import CommonSubexpressionReport, merge_common_subexpressions
from tests.passes.programs import Builder, body

aten = torch.ops.aten
S0 = symbol("s0")


def test_before_and_after() -> None:
    b = Builder("x")
    (x,) = b.inputs
    a = b.call("a", aten.exp.default, x)
    c = b.call("c", aten.exp.default, x)
    d = b.call("d", aten.sin.default, a)
    e = b.call("e", aten.sin.default, c)
    f = b.call("f", aten.cat.default, [d, e, c])
    before = b.program(f)
    after, report = merge_common_subexpressions(before)
    assert body(before) == [
        "a = exp.default(x)",
        "c = exp.default(x)",
        "d = sin.default(a)",
        "e = sin.default(c)",
        "f = cat.default([d, e, c])",
        "return (f,)",
    ]
    assert body(after) == [
        "a = exp.default(x)",
        "d = sin.default(a)",
        "f = cat.default([d, d, a])",
        "return (f,)",
    ]
    assert report == CommonSubexpressionReport((("c", "a"), ("e", "d")))
    assert str(report) == "merged 2 values with an earlier, equal one"


def test_nothing_to_merge_gives_the_same_program() -> None:
    b = Builder("x")
    (x,) = b.inputs
    a, c = b.call("a", aten.exp.default, x), b.call("c", aten.sin.default, x)
    program = b.program(b.call("d", aten.mul.Tensor, a, c))
    after, report = merge_common_subexpressions(program)
    assert after is program
    assert report.merged == ()


def test_equal_nodes_with_several_results() -> None:
    b = Builder("x")
    first, second = ((b.value(f"v{i}"), b.value(f"i{i}")) for i in range(2))
    for outputs in (first, second):
        b.nodes.append(Node(aten.topk.default, (b.inputs[0], 2), outputs=outputs, unpack=True))
    after, _ = merge_common_subexpressions(b.program(b.call("r", aten.mul.Tensor, first[0], second[1])))
    assert body(after) == ["v0, i0 = topk.default(x, 2)", "r = mul.Tensor(v0, i0)", "return (r,)"]


def test_views_are_merged_too() -> None:
    b = Builder("x")
    (x,) = b.inputs
    a, c = (b.call(name, aten.slice.Tensor, x, 0, 1, view_of=x, shape=(3,), offset=1) for name in "ac")
    after, report = merge_common_subexpressions(b.program(b.call("d", aten.mul.Tensor, a, c, shape=(3,))))
    assert report.merged == (("c", "a"),)
    assert len(after.nodes) == 2


def _twice(target: Any, first: tuple[Any, ...], second: tuple[Any, ...], **options: Any) -> int:
    """How many of two nodes are merged; operands "x" stand for the input."""
    b = Builder("x")
    a, c = (
        b.call(name, target, *(b.inputs[0] if arg == "x" and isinstance(arg, str) else arg for arg in args), **options)
        for name, args in (("a", first), ("c", second))
    )
    program = b.program(b.call("d", aten.mul.Tensor, a, c))
    after, report = merge_common_subexpressions(program)
    assert (after is program) == (not report.merged)
    return len(report.merged)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (0.0, -0.0),
        (1, 1.0),
        (1, True),
        (0, False),
        (1.0, complex(1)),
        (complex(0.0, 0.0), complex(0.0, -0.0)),
        ([1], [1.0]),
        (None, 0),
        (SizeExpr("mul", (S0, 1)), SizeExpr("mul", (S0, 1.0))),
        (SizeExpr("mul", (S0, 0.0)), SizeExpr("mul", (S0, -0.0))),
        (torch.float32, torch.float64),
    ],
)
def test_operands_that_are_equal_but_not_alike(one: object, other: object) -> None:
    assert _twice(aten.add.Tensor, ("x", one), ("x", other)) == 0
    assert _twice(aten.add.Tensor, ("x", one), ("x", one)) == 1


@pytest.mark.parametrize("operand", [math.nan, math.inf, [1, (2,)], SizeExpr("add", (S0, 2)), "mean", torch.strided])
def test_operands_that_are_alike(operand: object) -> None:
    assert _twice(aten.add.Tensor, ("x", operand), ("x", operand)) == 1


def test_keywords_count() -> None:
    b = Builder("x")
    (x,) = b.inputs
    values = [b.call(n, aten.add.Tensor, x, x, kwargs=(("alpha", k),)) for n, k in (("a", 1), ("c", 2), ("d", 1))]
    _, report = merge_common_subexpressions(b.program(b.call("e", aten.cat.default, values)))
    assert report.merged == (("d", "a"),)


@pytest.mark.parametrize(
    ("target", "args"),
    [
        (aten.rand_like.default, ("x",)),
        (aten.bernoulli.p, ("x", 0.5)),
        (aten.native_dropout.default, ("x", 0.5, True)),
        (aten.randperm.default, (4,)),
        (prims.GET_RNG_STATE, ()),
        (prims.functional_form(aten.normal_.default, (0,)), ("x",)),
        (print, ("x",)),
        (aten.mul_.Tensor, ("x", 2)),
    ],
)
def test_random_and_effectful_nodes_stay(target: Any, args: tuple[Any, ...]) -> None:
    assert _twice(target, args, args) == 0


@pytest.mark.parametrize("returned", ["first", "second", "both", "view"])
def test_what_the_caller_gets_stays(returned: str) -> None:
    b = Builder("x")
    (x,) = b.inputs
    a, c = b.call("a", aten.exp.default, x), b.call("c", aten.exp.default, x)
    d = b.call("d", aten.mul.Tensor, a, c)
    view = b.call("view", aten.view.default, c, [2, 2], view_of=c, shape=(2, 2))
    outputs = {"first": (a,), "second": (c,), "both": (a, c), "view": (view,)}[returned]
    program = b.program(d, *outputs)
    assert merge_common_subexpressions(program)[0] is program


def test_a_backward_node_does_not_merge_with_an_equal_forward_node() -> None:
    b = Builder("x", "t")
    x, t = b.inputs
    a = b.call("a", aten.exp.default, x)
    again, once_more = b.late("again", aten.exp.default, x), b.late("once_more", aten.exp.default, x)
    g = b.late("g", aten.cat.default, [a, again, once_more, t])
    after, report = merge_common_subexpressions(b.program(g))
    assert report.merged == (("once_more", "again"),)
    assert [node.phase for node in after.nodes] == [Phase.FORWARD, Phase.BACKWARD, Phase.BACKWARD]


def test_a_recomputed_node_does_not_merge_with_another() -> None:
    b = Builder("x")
    (x,) = b.inputs
    a, c = b.call("a", aten.exp.default, x), b.call("c", aten.exp.default, x, recomputed=True)
    program = b.program(b.call("d", aten.mul.Tensor, a, c))
    assert merge_common_subexpressions(program)[0] is program


def test_memory_without_contents_stays_apart() -> None:
    b = Builder("x")
    (x,) = b.inputs
    a, c = b.call("a", aten.empty_like.default, x), b.call("c", aten.empty_like.default, x)
    d, e = b.call("d", aten.copy.default, a, x), b.call("e", aten.add.Tensor, c, x)
    program = b.program(b.call("f", aten.mul.Tensor, d, e))
    assert merge_common_subexpressions(program)[0] is program


@pytest.mark.parametrize("make", [torch.empty, torch.zeros])
def test_what_an_operator_fills_is_filled_in_place(make: Any) -> None:
    """A collective fills tensors of its own for each of its calls; eager mode holds one at a time."""

    @dovetail.compile_step
    def step(x: torch.Tensor) -> torch.Tensor:
        total = torch.zeros(())
        for factor in (1.0, 2.0, 3.0):
            whole = make(2, 64, 64)
            FILL(whole, x * factor)
            total = total + whole.sum()
        return total

    x = torch.randn(64, 64)
    for _ in range(2):
        assert step(x).item() == pytest.approx(12.0 * x.sum().item(), rel=1e-4)
    assert step.explain().peak_bytes < 3 * 64 * 64 * 4 + 256


def _fill(out: torch.Tensor, part: torch.Tensor) -> None:
    out.copy_(part.expand_as(out))


FILL = define("test_fill_", "(Tensor(a!) out, Tensor part) -> ()", _fill, lambda *_: None)
