"""What lies on a merged storage moves with it."""

from __future__ import annotations

import torch

from dovetail.analysis.merging import Merging
from dovetail.ir.program import Node, TensorMeta, Value

_CPU = torch.device("cpu")
aten = torch.ops.aten


def _value(name: str, storage: int) -> Value:
    return Value(name, TensorMeta((2, 3), (3, 1), 0, torch.float32, _CPU, storage))


def test_views_of_a_merged_value_lie_where_it_lies() -> None:
    x, y, view, view_of_view = _value("x", 0), _value("y", 1), _value("view", 1), _value("view_of_view", 1)
    merging = Merging()
    merging.merge(y, x)
    first = merging.rewrite(Node(aten.view.default, (y, [2, 3]), (), (view,)))
    second = merging.rewrite(Node(aten.view.default, (view, [2, 3]), (), (view_of_view,)))
    assert first.args == (x, [2, 3])
    assert [v.tensor.storage for v in (*first.results(), *second.results())] == [0, 0]
    assert second.args[0] is first.outputs[0]
    assert merging.operand([y, 3, view_of_view]) == [x, 3, second.outputs[0]]


def test_a_merged_view_is_found_by_its_old_name() -> None:
    x, y, view = _value("x", 0), _value("y", 1), _value("view", 1)
    merging = Merging()
    merging.merge(y, x)
    moved = merging.rewrite(Node(aten.view.default, (y, [2, 3]), (), (view,))).outputs[0]
    assert moved is not None
    merging.merge(moved, x)
    assert merging.current(view) is x


def test_nothing_changes_without_a_merge() -> None:
    x, y = _value("x", 0), _value("y", 1)
    node = Node(aten.add.Tensor, (x, 1), (), (y, None))
    assert Merging().rewrite(node) is node
