"""New nodes: what their results look like, where they lie, what they are called."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from dovetail.analysis.infer import MetaInference
from dovetail.analysis.new_nodes import NodeMaker
from dovetail.ir.convert import describe
from dovetail.ir.draft import Draft
from dovetail.ir.program import Program, ScalarMeta, Stage, TensorMeta, Value
from dovetail.torch_compat.fakes import new_fake_mode, symbolic_fake_of
from dovetail.torch_compat.symbols import new_shape_env

aten = torch.ops.aten


def _maker(*inputs: Value) -> NodeMaker:
    return NodeMaker(Draft(Program("p", Stage.FUNCTIONAL, inputs, (), ())), MetaInference(new_fake_mode(), {}))


def _value(name: str, *shape: int, offset: int = 0, storage: int = 0) -> Value:
    stride = torch.empty(shape).stride()
    return Value(name, TensorMeta(shape, stride, offset, torch.float32, torch.device("cpu"), storage))


def test_fresh_results_get_storages_and_names_of_their_own() -> None:
    x = _value("x", 2, 3, storage=4)
    maker = _maker(x)
    node = maker.call(aten.add.Tensor, (x, 1.0), name="x")
    (result,) = node.results()
    assert (result.name, result.tensor.shape, result.tensor.storage) == ("x_1", (2, 3), 5)
    (other,) = maker.call(aten.to.dtype, (x, torch.float64), name="x").results()
    assert (other.name, other.tensor.storage, other.tensor.dtype) == ("x_2", 6, torch.float64)


def test_views_lie_in_their_operand() -> None:
    x = _value("x", 4, 3, offset=7, storage=2)
    (row,) = _maker(x).call(aten.select.int, (x, 0, 2), name="row").results()
    assert row.tensor == TensorMeta((3,), (1,), 13, torch.float32, torch.device("cpu"), 2)


def test_several_results() -> None:
    x = _value("x", 4, 3)
    node = _maker(x).call(aten.split.Tensor, (x, 2), name="part")
    assert node.unpack
    assert [(v.name, v.tensor.offset, v.tensor.storage) for v in node.results()] == [("part", 0, 0), ("part_1", 6, 0)]
    assert not _maker(x).call(aten.cat.default, ([x, x],), name="both").unpack


def test_a_node_again_after_its_operand_has_changed() -> None:
    x = _value("x", 4, 3)
    maker = _maker(x)
    node = maker.call(aten.relu.default, (x,), name="y")
    wide = maker.input("wide", TensorMeta((4, 3), (1, 4), 0, torch.float32, torch.device("cpu"), 0))
    (y,) = maker.reinferred(node.with_operands(lambda _: wide)).results()
    assert (y.tensor.stride, wide.tensor.storage != x.tensor.storage) == ((1, 4), True)
    assert y.name == "y_1"


def test_values_look_alike() -> None:
    maker = _maker()
    x = _value("x", 4, 3)
    assert maker.look_alike(x, _value("y", 4, 3, storage=1))
    assert not maker.look_alike(x, _value("y", 4, 3, offset=1))
    assert not maker.look_alike(x, _value("y", 3, 4))
    assert not maker.look_alike(x, Value("n", ScalarMeta(3)))
    assert maker.look_alike(Value("m", ScalarMeta(3)), Value("n", ScalarMeta(3)))


def test_symbols_that_turned_out_to_be_numbers() -> None:
    env = new_shape_env()
    mode = new_fake_mode(env)
    fake: Any = symbolic_fake_of(mode, torch.empty(5, 3), "x")
    meta = describe(fake, 0)
    infer = MetaInference(mode, {str(size): real for size, real in zip(meta.shape, fake.shape, strict=True)})
    program = Program("p", Stage.FUNCTIONAL, (), (), ())
    assert infer.settled(meta) == meta
    assert not NodeMaker(Draft(program), infer).look_alike(Value("x", meta), _value("y", 5, 3))
    assert fake.shape[1] == 3
    rows = meta.shape[0]
    assert infer.settled(meta).shape == (rows, 3)
    assert NodeMaker(Draft(program), infer).look_alike(
        Value("x", meta), Value("y", replace(meta, shape=(rows, 3), stride=(3, 1)))
    )
