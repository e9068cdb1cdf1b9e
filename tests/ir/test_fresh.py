"""Names and storages that a program does not have."""

from __future__ import annotations

import torch

from dovetail.ir.fresh import Fresh
from tests.passes.programs import Builder

aten = torch.ops.aten


def test_names_and_storages_are_given_once() -> None:
    b = Builder("x")
    fresh = Fresh(b.program(b.call("y", aten.sin.default, b.inputs[0])))
    assert [fresh.name(wish) for wish in ("z", "z", "x", "y", "y")] == ["z", "z_1", "x_1", "y_1", "y_2"]
    assert [fresh.name("part", 2), fresh.name("part", 2)] == ["part", "part_2"]
    assert [fresh.storage(), fresh.storage()] == [2, 3]


def test_values_are_inputs_and_results_in_order() -> None:
    b = Builder("x", "y")
    z = b.call("z", aten.add.Tensor, *b.inputs)
    assert [value.name for value in b.program(z).values()] == ["x", "y", "z"]
