"""Programs share what did not change, and answer questions about themselves."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from dovetail.ir.program import (
    Node,
    Program,
    ScalarMeta,
    Stage,
    TensorMeta,
    Value,
    map_operands,
    meta_symbols,
    symbols_in,
    values_in,
)
from dovetail.ir.sizes import SizeExpr, symbol

aten = torch.ops.aten
CPU = torch.device("cpu")
S0, S1 = symbol("s0"), symbol("s1")


def _value(name: str, storage: int) -> Value:
    return Value(name, TensorMeta((2,), (1,), 0, torch.float32, CPU, storage))


X, Y, Z = (_value(name, i) for i, name in enumerate("xyz"))
SIN = Node(aten.sin.default, (X,), outputs=(Y,))
CAT = Node(aten.cat.default, ([Y, X, Y], 0), outputs=(Z,))
PROGRAM = Program("f", Stage.FUNCTIONAL, (X,), (SIN, CAT), (Z, [Y, 3], None))


def test_map_operands_gives_the_same_object_when_nothing_changed() -> None:
    operand = (X, [1, (Y, None)], "s")
    assert map_operands(operand, lambda value: value) is operand


def test_map_operands_copies_only_the_way_to_a_change() -> None:
    kept, changed = [X, X], [1, (Y, None)]
    operand = (kept, changed)
    result = map_operands(operand, lambda value: Z if value is Y else value)
    assert result == ([X, X], [1, (Z, None)])
    assert result[0] is kept  # type: ignore[index]
    assert changed == [1, (Y, None)]


def test_with_operands() -> None:
    node = Node(aten.add.Tensor, (X, Y), (("alpha", Z),), outputs=(_value("a", 3),))
    assert node.with_operands(lambda value: value) is node
    by_keyword = node.with_operands(lambda value: 2 if value is Z else value)
    assert by_keyword.kwargs == (("alpha", 2),)
    assert by_keyword.outputs is node.outputs
    assert node.with_operands(lambda value: Y if value is X else value).args == (Y, Y)
    assert node.args == (X, Y)


def test_replace_nodes_gives_the_same_program_when_nothing_changed() -> None:
    assert PROGRAM.replace_nodes((SIN, CAT)) is PROGRAM
    assert PROGRAM.replace_nodes((SIN, CAT), (Z, [Y, 3], None)) is PROGRAM


def test_replace_nodes_compares_nodes_by_identity() -> None:
    twin = dataclasses.replace(SIN)
    assert PROGRAM.replace_nodes((twin, CAT)).nodes[0] is twin
    assert PROGRAM.replace_nodes((SIN,), (Y,)).outputs == (Y,)
    assert PROGRAM.nodes == (SIN, CAT)


def test_operands_and_use_counts_count_repeats_and_outputs() -> None:
    assert list(CAT.operands()) == [Y, X, Y]
    assert PROGRAM.use_counts() == {X: 2, Y: 3, Z: 1}
    assert PROGRAM.producers() == {Y: SIN, Z: CAT}


def test_storages_of_inputs_and_outputs() -> None:
    number = Value("n", ScalarMeta(S0))
    program = dataclasses.replace(PROGRAM, inputs=(X, number))
    assert program.input_storages() == {0}
    assert program.output_storages() == {1, 2}


def test_values_are_compared_by_identity() -> None:
    assert _value("x", 0) != _value("x", 0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        X.name = "y"  # type: ignore[misc]


def test_a_number_is_no_tensor() -> None:
    number = Value("n", ScalarMeta(3))
    assert not number.is_tensor
    with pytest.raises(TypeError, match="n is a number, not a tensor"):
        _ = number.tensor


def test_symbols_of_operands_nodes_and_descriptions() -> None:
    area = SizeExpr("mul", (S0, S1))
    assert list(symbols_in([area, (S0, 3)])) == ["s0", "s1", "s0"]
    assert list(Node(aten.ones.default, ([S1],), (("x", [S0]),)).symbols()) == ["s1", "s0"]
    assert list(meta_symbols(TensorMeta((S0,), (1,), S1, torch.float32, CPU, 0))) == ["s0", "s1"]
    assert list(meta_symbols(ScalarMeta(area))) == ["s0", "s1"]
    assert list(values_in((X, [Y, 1], "x"))) == [X, Y]


@pytest.mark.parametrize(
    ("shape", "stride", "expected"),
    [
        ((2, 3), (3, 1), False),
        ((2, 3), (1, 2), False),
        ((2, 3), (0, 1), True),
        ((1, 3), (0, 1), False),
        ((3, 3), (1, 1), True),
        ((2, 3), (2, 1), True),
        ((3, 2), (2, 3), True),  # may: 0, 2, 3, 4, 5, 7 are apart
        ((S0,), (1,), False),
        ((S0,), (0,), True),
    ],
)
def test_overlaps_itself(shape: tuple[int, ...], stride: tuple[int, ...], expected: bool) -> None:
    assert TensorMeta(shape, stride, 0, torch.float32, CPU, 0).overlaps_itself() is expected


def test_bytes_and_text_of_a_description() -> None:
    meta = TensorMeta((2, S0), (S0, 1), 0, torch.bfloat16, torch.device("cuda", 0), 0)
    assert str(meta) == "bf16[2, s0] cuda:0"
    assert meta.numel() == SizeExpr("mul", (S0, 2))
    assert TensorMeta((2, 3), (3, 1), 0, torch.float64, CPU, 0).size_bytes() == 48
