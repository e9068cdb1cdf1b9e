"""Drafts: names and storages that a program does not have, what stands for what, and where results lie by then."""

from __future__ import annotations

import torch

from dovetail.ir.draft import Draft, free_name
from dovetail.ir.program import Node, Program, Stage, TensorMeta, Value
from tests.passes.programs import Builder

_CPU = torch.device("cpu")
aten = torch.ops.aten


def _value(name: str, storage: int) -> Value:
    return Value(name, TensorMeta((2, 3), (3, 1), 0, torch.float32, _CPU, storage))


def _draft(*inputs: Value) -> Draft:
    return Draft(Program("p", Stage.FUNCTIONAL, inputs, (), ()))


def test_names_and_storages_are_given_once() -> None:
    b = Builder("x")
    draft = Draft(b.program(b.call("y", aten.sin.default, b.inputs[0])))
    assert [draft.name(wish) for wish in ("z", "z", "x", "y", "y")] == ["z", "z_1", "x_1", "y_1", "y_2"]
    assert [draft.name("part", 2), draft.name("part", 2)] == ["part", "part_2"]
    assert [draft.storage(), draft.storage()] == [2, 3]
    made = draft.value("z", TensorMeta((2,), (1,), 5, torch.float32, _CPU, 0))
    assert (made.name, made.tensor.storage, made.tensor.offset) == ("z_2", 4, 0)
    assert free_name("x", {"x", "x_1"}) == "x_2"


def test_values_are_inputs_and_results_in_order() -> None:
    b = Builder("x", "y")
    z = b.call("z", aten.add.Tensor, *b.inputs)
    assert [value.name for value in b.program(z).values()] == ["x", "y", "z"]


def test_views_of_a_merged_value_lie_where_it_lies() -> None:
    x, y, view, view_of_view = _value("x", 0), _value("y", 1), _value("view", 1), _value("view_of_view", 1)
    draft = _draft(x)
    draft.merge(y, x)
    draft.take(Node(aten.view.default, (y, [2, 3]), (), (view,)))
    draft.take(Node(aten.view.default, (view, [2, 3]), (), (view_of_view,)))
    first, second = draft.nodes
    assert first.args == (x, [2, 3])
    assert [v.tensor.storage for v in (*first.results(), *second.results())] == [0, 0]
    assert second.args[0] is first.outputs[0]
    assert draft.operand([y, 3, view_of_view]) == [x, 3, second.outputs[0]]


def test_a_merged_view_is_found_by_its_old_name() -> None:
    x, y, view = _value("x", 0), _value("y", 1), _value("view", 1)
    draft = _draft(x)
    draft.merge(y, x)
    placed = draft.rewritten(Node(aten.view.default, (y, [2, 3]), (), (view,))).outputs[0]
    assert placed is not None
    draft.merge(placed, x)
    assert draft.current(view) is x


def test_a_value_may_stand_for_itself() -> None:
    x, y = _value("x", 0), _value("y", 1)
    draft = _draft(x)
    assert x not in draft
    draft.substitute(x, x)
    draft.substitute(y, x)
    assert x in draft
    assert draft.current(y) is x


def test_inputs_and_results_that_are_substituted_are_those_of_the_new_program() -> None:
    b = Builder("x")
    (x,) = b.inputs
    y = b.call("y", aten.sin.default, x)
    program = b.program(y)
    draft = Draft(program)
    other, result = Value("other", x.meta), Value("result", y.meta)
    draft.substitute(x, other)
    draft.substitute(y, result)
    for node in program.nodes:
        draft.take(node)
    made = draft.finish()
    assert (made.inputs, made.outputs) == ((other,), (result,))
    assert (made.nodes[0].args, made.nodes[0].outputs) == ((other,), (result,))


def test_nothing_changes_without_a_substitution() -> None:
    x, y = _value("x", 0), _value("y", 1)
    node = Node(aten.add.Tensor, (x, 1), (), (y, None))
    program = Program("p", Stage.FUNCTIONAL, (x,), (node,), (y,))
    draft = Draft(program)
    draft.take(node)
    assert draft.nodes[0] is node
    assert draft.finish() is program


def test_what_lies_in_a_moved_storage_moves() -> None:
    x, y = _value("x", 0), _value("y", 1)
    draft = _draft(x, y)
    draft.move(1, 7)
    assert [value.tensor.storage for value in draft.finish().inputs] == [0, 7]
