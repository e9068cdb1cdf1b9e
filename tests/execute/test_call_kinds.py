"""Nodes that are alike make the same call, and nodes that are not are told apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dovetail.execute.call_kinds import kind_of
from dovetail.execute.operator_calls import CallMaker
from dovetail.ir.program import Node, ScalarMeta, TensorMeta, Value
from dovetail.ir.sizes import SizeExpr
from tests.passes.recorded_models import record

aten = torch.ops.aten


def _value(
    storage: int,
    shape: tuple[int, ...] = (4, 4),
    stride: tuple[int, ...] = (4, 1),
    offset: int = 0,
    dtype: torch.dtype = torch.float32,
) -> Value:
    meta = TensorMeta(shape, stride, offset, dtype, torch.device("cpu"), storage)
    return Value(f"v{storage}_{offset}", meta)


def _add(*args: Any, out: Value | None = None) -> Node:
    return Node(aten.add.Tensor, args, outputs=(out or _value(9),))


def test_names_and_numbers_of_storages_make_no_difference() -> None:
    assert kind_of(_add(_value(1), _value(2))) == kind_of(_add(_value(5), _value(3), out=_value(4)))
    assert kind_of(_add(_value(1, offset=8), _value(2))) == kind_of(_add(_value(1), _value(2)))
    one, other = (Node(aten.cat.default, ([_value(k), _value(k + 1)], 0), outputs=(_value(9),)) for k in (1, 4))
    assert kind_of(one) == kind_of(other)


@pytest.mark.parametrize(
    "node",
    [
        _add(_value(1), _value(1)),
        _add(_value(1), _value(1, offset=16)),
        _add(_value(1), _value(2), out=_value(1)),
        _add(_value(1), _value(2, stride=(1, 4))),
        _add(_value(1), _value(2, shape=(1, 4))),
        _add(_value(1), _value(2, dtype=torch.float64)),
        _add(_value(1), 1),
        _add(_value(1), 1.0),
        _add(_value(1), True),
        _add(_value(1), 0.0),
        _add(_value(1), -0.0),
        _add(_value(1), Value("n", ScalarMeta(1))),
        _add(_value(1), Value("n", ScalarMeta(SizeExpr("symbol", ("s0",))))),
        _add([_value(1), _value(2)]),
        _add([_value(1), _value(1)]),
        Node(aten.add.Tensor, (_value(1), _value(2)), (("alpha", 2),), outputs=(_value(9),)),
        Node(aten.add.Tensor, (_value(1), _value(2)), outputs=(None,)),
        Node(aten.mul.Tensor, (_value(1), _value(2)), outputs=(_value(9),)),
    ],
    ids=lambda node: str(node.args) + str(node.outputs),
)
def test_nodes_that_are_not_alike(node: Node) -> None:
    _KINDS.setdefault(kind_of(node), node)
    assert _KINDS[kind_of(node)] is node
    assert kind_of(node) != kind_of(_add(_value(1), _value(2)))


_KINDS: dict[Any, Node] = {}


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 4, num_layers=2)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.lstm(x)[0]
        return found


def _mixed(x: Tensor) -> tuple[Tensor, ...]:
    position = x.argmax(-1)
    parts = [x[:, :2], x[:, 2:], x[:, :2]]
    return (
        x.gather(1, position[:, None]),
        torch.cat(parts, 1),
        x * 1,
        x * 1.0,
        x + x,
        x.t() @ x,
        x[1:] + x[:-1],
        position,
    )


class _Function(nn.Module):
    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self._function = function

    def forward(self, x: Tensor) -> Any:
        return self._function(x)


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (_Recurrent(), (3, 2, 4)),
        (_Function(_mixed), (4, 4)),
        (nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 4), nn.GELU()), (4, 4)),
        (nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)), (2, 2, 8, 8)),
    ],
    ids=["recurrent", "mixed", "layers", "convolution"],
)
def test_calls_of_nodes_that_are_alike_are_equal(model: nn.Module, shape: tuple[int, ...]) -> None:
    program = record(model, torch.randn(*shape)).program
    producers = program.producers()
    together = CallMaker({}, producers)
    for node in (*program.nodes, *program.nodes):
        mine, found = CallMaker({}, producers).call_of(node), together.call_of(node)
        assert (mine is None) == (found is None)
        if mine is not None and found is not None:
            assert (mine.key, mine.results, mine.is_safe) == (found.key, found.results, found.is_safe)
            assert (mine.args, mine.kwargs) == (found.args, found.kwargs)
