"""Operands by the names of arguments."""

from __future__ import annotations

import torch

from dovetail.ir.program import Node
from dovetail.ops.arguments import arguments_of, with_arguments

aten = torch.ops.aten


def test_defaults_are_included() -> None:
    node = Node(aten.addmm.default, ("b", "x", "w"), (("alpha", 2),))
    assert arguments_of(node) == {"self": "b", "mat1": "x", "mat2": "w", "alpha": 2, "beta": 1}
    assert arguments_of(Node(aten.conv2d.default, ("x", "w")))["bias"] is None


def test_a_target_without_a_schema_has_no_arguments() -> None:
    assert arguments_of(Node(max, (1, 2))) == {}


def test_changes_go_where_the_operand_was_or_are_named() -> None:
    node = Node(aten.conv2d.default, ("x", "w"), (("stride", [2, 2]),))
    changed = with_arguments(node, {"weight": "v", "bias": "b"})
    assert changed.args == ("x", "v")
    assert dict(changed.kwargs) == {"stride": [2, 2], "bias": "b"}
    assert with_arguments(Node(aten.conv2d.default, ("x", "w", None)), {"bias": "b"}).args == ("x", "w", "b")
