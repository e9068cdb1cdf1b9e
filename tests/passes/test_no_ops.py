"""Views and copies that change nothing, and those that only look so."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from dovetail.ir.program import Node
from dovetail.ops import prims
from dovetail.passes.no_ops import NoOpReport, remove_no_ops
from tests.passes.programs import Builder, body

aten = torch.ops.aten


def test_before_and_after() -> None:
    b = Builder("x")
    (x,) = b.inputs
    same = b.call("same", aten.view.default, x, [4], view_of=x)
    made = b.call("made", aten.sin.default, same)
    copied = b.call("copied", aten.clone.default, made)
    once_more = b.call("once_more", aten._to_copy.default, copied)
    result = b.call("result", aten.mul.Tensor, once_more, made)
    before = b.program(result)
    after, report = remove_no_ops(before)
    assert body(before) == [
        "same = view.default(x, [4])",
        "made = sin.default(same)",
        "copied = clone.default(made)",
        "once_more = _to_copy.default(copied)",
        "result = mul.Tensor(once_more, made)",
        "return (result,)",
    ]
    assert body(after) == ["made = sin.default(x)", "result = mul.Tensor(made, made)", "return (result,)"]
    assert report == NoOpReport((("same", "x"), ("copied", "made"), ("once_more", "made")))
    assert str(report) == "removed 3 views and copies that change nothing"


def test_nothing_to_remove_gives_the_same_program() -> None:
    b = Builder("x")
    program = b.program(b.call("a", aten.sin.default, b.inputs[0]))
    assert remove_no_ops(program)[0] is program


@pytest.mark.parametrize("target", [aten.clone.default, aten._to_copy.default, prims.COPY_TO_LAYOUT])
def test_copies_of_inputs_stay(target: object) -> None:
    b = Builder("x")
    copied = b.call("copied", target, b.inputs[0])
    program = b.program(b.call("a", aten.sin.default, copied))
    assert remove_no_ops(program)[0] is program


def test_a_copy_of_a_view_of_an_input_stays() -> None:
    b = Builder("x")
    (x,) = b.inputs
    view = b.call("view", aten.slice.Tensor, x, 0, 1, view_of=x, shape=(3,), offset=1)
    copied = b.call("copied", aten.clone.default, view, shape=(3,))
    program = b.program(b.call("a", aten.sin.default, copied, shape=(3,)))
    assert remove_no_ops(program)[0] is program


@pytest.mark.parametrize("returned", ["copied", "made", "view of copied"])
def test_copies_of_what_is_returned_stay(returned: str) -> None:
    b = Builder("x")
    made = b.call("made", aten.sin.default, b.inputs[0])
    copied = b.call("copied", aten.clone.default, made)
    read = b.call("read", aten.exp.default, copied)
    view = b.call("view", aten.t.default, copied, view_of=copied, stride=(2,))
    program = b.program(read, {"copied": copied, "made": made, "view of copied": view}[returned])
    assert remove_no_ops(program)[0] is program


@pytest.mark.parametrize(
    "change", [{"dtype": torch.float64}, {"stride": (2,)}, {"device": torch.device("meta")}, {"shape": (5,)}]
)
def test_a_copy_that_looks_otherwise_stays(change: dict[str, object]) -> None:
    b = Builder("x")
    made = b.call("made", aten.sin.default, b.inputs[0])
    copied = b.call("copied", aten._to_copy.default, made, **change)
    program = b.program(b.call("read", aten.exp.default, copied))
    assert remove_no_ops(program)[0] is program


@pytest.mark.parametrize("change", [{"offset": 1}, {"stride": (2,)}, {"shape": (2,)}, {"dtype": torch.int32}])
def test_a_view_that_looks_otherwise_stays(change: dict[str, object]) -> None:
    b = Builder("x")
    made = b.call("made", aten.sin.default, b.inputs[0])
    view = b.call("view", aten.as_strided.default, made, [4], [1], view_of=made, **change)
    program = b.program(b.call("read", aten.exp.default, view))
    assert remove_no_ops(program)[0] is program


@pytest.mark.parametrize("target", [aten._conj.default, aten._neg_view.default])
def test_a_view_that_shows_other_numbers_stays(target: object) -> None:
    b = Builder("x")
    (x,) = b.inputs
    program = b.program(b.call("read", aten.exp.default, b.call("view", target, x, view_of=x)))
    assert remove_no_ops(program)[0] is program


def test_a_returned_view_stays_a_tensor_of_its_own() -> None:
    b = Builder("x")
    (x,) = b.inputs
    view = b.call("view", aten.view.default, x, [4], view_of=x)
    program = b.program(view)
    assert remove_no_ops(program)[0] is program


def test_a_pure_operator_that_is_no_copy_stays() -> None:
    b = Builder("x")
    made = b.call("made", aten.sin.default, b.inputs[0])
    program = b.program(b.call("read", aten.exp.default, b.call("relu", aten.relu.default, made)))
    assert remove_no_ops(program)[0] is program


def test_results_in_a_sequence_stay() -> None:
    b = Builder("x")
    (x,) = b.inputs
    item = b.value("item", storage=x.tensor.storage)
    b.nodes.append(Node(aten.split.Tensor, (x, 4), outputs=(item,), unpack=True))
    program = b.program(b.call("read", aten.exp.default, item))
    assert remove_no_ops(program)[0] is program
    single = dataclasses.replace(program.nodes[0], target=aten.view.default, args=(x, [4]), unpack=False)
    assert len(remove_no_ops(program.replace_nodes((single, program.nodes[1])))[0].nodes) == 1


def test_what_is_written_over_all_is_the_new_tensor() -> None:
    """Code that writes `x[:, a:b]` writes over all rows, whose number is a symbol: by a slice that leaves none out."""
    b = Builder("x")
    (x,) = b.inputs
    zeros = b.call("zeros", aten.zeros.default, [4])
    made = b.call("made", aten.sin.default, x)
    over = b.call("over", aten.slice_scatter.default, zeros, made, 0, 0, 9223372036854775807)
    by_view = b.call("by_view", prims.view_scatter(aten.slice.Tensor, None), zeros, over, 0, 0, 4)
    after, report = remove_no_ops(b.program(by_view))
    assert body(after) == ["zeros = zeros.default([4])", "made = sin.default(x)", "return (made,)"]
    assert report == NoOpReport((("over", "made"), ("by_view", "made")))


def test_what_is_written_over_all_stays_where_it_is_not_alone() -> None:
    """An input, what is returned as well, a view of something, another layout, and a part."""
    b = Builder("x")
    (x,) = b.inputs
    zeros = b.call("zeros", aten.zeros.default, [4])
    returned = b.call("returned", aten.sin.default, x)
    base = b.call("base", aten.cos.default, x, shape=(2, 4))
    view = b.call("view", aten.select.int, base, 0, 1, view_of=base, offset=4)
    turned = b.call("turned", aten.exp.default, x, stride=(2,))
    part = b.call("part", aten.log.default, x, shape=(3,))
    results = [
        b.call(f"over_{place}", aten.slice_scatter.default, zeros, source, 0, 0, 4)
        for place, source in enumerate((x, returned, view, turned, part))
    ]
    program = b.program(*results, returned)
    assert remove_no_ops(program)[0] is program
