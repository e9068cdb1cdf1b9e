"""What may run again, by facts alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dovetail.ir.program import Node, ScalarMeta, Value
from dovetail.ir.sizes import symbol
from dovetail.ops import prims
from dovetail.partition.policy import Mark, Policy, can_run_again, is_cheap, is_view
from tests.partition.joint_programs import value

aten = torch.ops.aten
X, Y = value("x", 4, 0), value("y", 4, 1)


def _node(target: Any, *operands: Any, storage: int = 9) -> Node:
    return Node(target, operands, outputs=(value("z", 4, storage),))


@pytest.mark.parametrize(
    ("node", "cheap"),
    [
        (_node(aten.sin.default, X), True),
        (_node(aten.where.self, X, X, Y), True),
        (_node(aten.view.default, X, [2, 2], storage=0), True),
        (_node(aten._to_copy.default, X), True),
        (_node(prims.COPY_TO_LAYOUT, X, [4], [1]), True),
        (_node(aten.full.default, [4], 1.0), True),
        (_node(aten.mm.default, X, Y), False),
        (_node(aten.sum.default, X), False),
        (_node(aten.native_layer_norm.default, X), False),
    ],
)
def test_cheap_or_not(node: Node, cheap: bool) -> None:
    assert can_run_again(node, ())
    assert is_cheap(node) == cheap
    assert Policy().allows(node) == cheap
    assert Policy("all").allows(node)
    assert not Policy("all", {node: Mark.MUST_SAVE}).allows(node)
    assert Policy(marks={node: Mark.MUST_RECOMPUTE}).allows(node)


@pytest.mark.parametrize(
    "node",
    [
        _node(aten.bernoulli.default, X),
        _node(aten.native_dropout.default, X, 0.5, True),
        _node(aten.rand_like.default, X),
        _node(aten.add_.Tensor, X, Y, storage=0),
        _node(aten.add.out, X, Y),
        _node(prims.GET_RNG_STATE),
        _node(prims.EXPECT, X),
        _node(aten.mul.Tensor, X, Value("n", ScalarMeta(symbol("n")))),
        Node(aten.sin.default, (X,)),
        Node(aten._local_scalar_dense.default, (X,), outputs=(Value("n", ScalarMeta(symbol("n"))),)),
    ],
    ids=lambda node: node.target.__name__,
)
def test_never_again(node: Node) -> None:
    assert not can_run_again(node, ())


def test_what_makes_a_size_runs_once() -> None:
    node = _node(aten.nonzero.default, X)
    assert can_run_again(node, ())
    assert not can_run_again(node, {node})


def test_a_view_has_one_tensor_and_its_memory() -> None:
    assert is_view(_node(aten.alias.default, X, storage=0))
    assert not is_view(_node(aten.alias.default, X))
    assert not is_view(_node(aten.add.Tensor, X, Y, storage=0))
    assert not is_view(_node(aten.zeros.default, [4]))
