"""Descriptions are held against torch once for each kind of call, and lies are found in repeated calls, too."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import dovetail
from dovetail.artifact.known_results import KnownResults
from dovetail.artifact.program_json import program_from_json, program_to_json
from dovetail.ir.program import Program
from dovetail.pipeline.compile_trace import CompileTrace
from tests.counting import steps_of

aten = torch.ops.aten


def _meta(*shape: int) -> torch.Tensor:
    return torch.empty(shape, device="meta")


def _program(layers: int) -> Program:
    trace = CompileTrace()
    model = nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8)) for _ in range(layers)])
    dovetail.freeze(model.eval(), (torch.randn(4, 8),), compile_trace=trace, dynamic_shapes={})
    return trace.lowerings[-1].steps[0].program


def test_results_are_rebuilt_with_their_memory() -> None:
    known = KnownResults()
    for _ in range(2):
        base = torch.empty(0, device="meta").set_(_meta(64).untyped_storage(), 8, (4, 6), (6, 1))
        (view,) = known.run(aten.transpose.int, (base, 0, 1), (), False)
        assert (view.shape, view.stride(), view.storage_offset()) == ((6, 4), (1, 6), 8)
        assert view.untyped_storage()._cdata == base.untyped_storage()._cdata
        values, places = known.run(aten.sort.default, (base,), (), True)
        assert (values.dtype, places.dtype) == (torch.float32, torch.int64)
        assert len({tensor.untyped_storage()._cdata for tensor in (base, values, places)}) == 3
        first, second = known.run(aten.split.Tensor, (base, 2), (), True)
        assert (first.storage_offset(), second.storage_offset()) == (8, 20)


@pytest.mark.parametrize("numbers", [(1, 1.0, True), (1.0, True, 1), (0.0, -0.0, 0)])
def test_equal_numbers_of_other_types_are_other_calls(numbers: tuple[Any, ...]) -> None:
    known = KnownResults()
    x = torch.ones(3, dtype=torch.int32, device="meta")
    for number in numbers:
        (result,) = known.run(aten.mul.Scalar, (x, number), (), False)
        assert result.dtype == aten.mul.Scalar(x, number).dtype, number


def test_an_operand_twice_is_another_call_than_two_operands() -> None:
    known = KnownResults()
    x, y = _meta(3), _meta(3)
    for other in (y, x, y):
        (result,) = known.run(aten.add_.Tensor, (x, other), (), False)
        assert result.untyped_storage()._cdata == x.untyped_storage()._cdata
        (swapped,) = known.run(aten.add_.Tensor, (other, x), (), False)
        assert swapped.untyped_storage()._cdata == other.untyped_storage()._cdata


def test_errors_are_not_remembered_as_results() -> None:
    known = KnownResults()
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"broadcast|must match"):
            known.run(aten.add.Tensor, (_meta(3), _meta(4)), (), False)


@pytest.mark.parametrize("field", ["shape", "stride", "offset", "dtype", "storage"])
def test_a_lie_about_a_repeated_call_is_found(field: str) -> None:
    data = program_to_json(_program(4))
    known = KnownResults()
    program_from_json(copy.deepcopy(data), known=known)  # everything honest is known now
    made = {name for node in data["nodes"] for name in node["outputs"] if name}
    shaped = [value for value in data["values"] if value["name"] in made and "shape" in value]
    entry = [value for value in shaped if value["shape"] == [4, 8]][-1]
    first = next(value for value in data["values"] if "shape" in value)
    lies = {
        "shape": [*entry["shape"][:-1], entry["shape"][-1] + 1],
        "stride": [1, 4],
        "offset": 1,
        "dtype": "float64",
        "storage": first["storage"],
    }
    entry[field] = lies[field]
    with pytest.raises(ValueError, match=r".+"):
        program_from_json(data, known=known)


def test_repeated_layers_cost_little() -> None:
    few, many = (program_to_json(_program(layers)) for layers in (1, 9))
    program_from_json(copy.deepcopy(few))  # what is loaded and made once
    first, second = (steps_of(lambda data=data: program_from_json(data)) for data in (few, many))
    assert second < 5 * first, (first, second)  # of nine times as many nodes
