"""The checker of splits that compute again sees every corruption."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from dovetail.errors import InvalidProgram
from dovetail.ir.program import Node, Program, Value
from dovetail.ir.signature import Gradient, InputMutation, Residual, UserOutput, WriteKind
from dovetail.partition.check_recompute import verify_recomputation
from dovetail.partition.recompute import split_keeping
from dovetail.partition.split import Split, split_by_phase
from tests.partition.joint_programs import DRAW, POINTWISE, PRODUCT, VIEW, Maker, random_program, value


def _program(*, writes_x: bool = False) -> Program:
    """x -> a (draw) -> b -> view -> c; y -> d; backward reads the view, b, c and d."""
    maker = Maker({"x": 8, "y": 8})
    x, y = maker.inputs
    (a,) = maker.apply(DRAW, x)
    (b,) = maker.apply(POINTWISE, a, y)
    (view,) = maker.apply(VIEW, b)
    (c,) = maker.apply(PRODUCT, view, y)
    (loss,) = maker.apply(POINTWISE, a, c, sizes=(1,))
    tangent = maker.tangent(8)
    (g,) = maker.apply(POINTWISE, tangent, view, late=True)
    (h,) = maker.apply(POINTWISE, g, b, late=True)
    (k,) = maker.apply(POINTWISE, h, c, late=True)
    written = [(InputMutation(0, WriteKind.UNTRACKED), b)] if writes_x else []
    return maker.program([(UserOutput(0), loss), *written, (Gradient(0), k)])


def _split(program: Program) -> Split:
    """Backward makes b, the view and c again, from a."""
    return split_keeping(program, lambda v: v.name == "v0_0")


def _backward(split: Split, **changes: Any) -> Split:
    return dataclasses.replace(split, backward=dataclasses.replace(split.backward, **changes))


def _forward(split: Split, **changes: Any) -> Split:
    return dataclasses.replace(split, forward=dataclasses.replace(split.forward, **changes))


def _swap_node(split: Split, place: int, **changes: Any) -> Split:
    nodes = list(split.backward.nodes)
    nodes[place] = dataclasses.replace(nodes[place], **changes)
    return _backward(split, nodes=tuple(nodes))


def _again(split: Split, name: str) -> Value:
    return next(v for node in split.backward.nodes for v in node.results() if v.name == name)


def _twice(split: Split) -> Split:
    first = split.backward.nodes[0]
    other = dataclasses.replace(first, outputs=(value("other", 8, 990),))
    return _backward(split, nodes=(first, other, *split.backward.nodes[1:]))


def _draws_again(split: Split) -> Split:
    (a,) = split.forward.nodes[0].results()
    node = Node(DRAW, (a,), outputs=(value("other", 8, 990),), phase=split.backward.nodes[0].phase)
    return _backward(split, nodes=(node, *split.backward.nodes))


def _other_number(split: Split) -> Split:
    (first, *rest) = split.backward.nodes
    (a, y) = first.operands()
    return _backward(split, nodes=(dataclasses.replace(first, args=(y, a)), *rest))


def _old_memory(split: Split) -> Split:
    (first, *rest) = split.backward.nodes
    (old,) = first.results()
    new = Value(old.name, dataclasses.replace(old.tensor, storage=split.backward.inputs[0].tensor.storage))
    renamed = [node.with_operands(lambda v: new if v is old else v) for node in rest]
    return _backward(split, nodes=(dataclasses.replace(first, outputs=(new,)), *renamed))


CORRUPTIONS: list[tuple[str, Callable[[Split], Split], str]] = [
    ("forward draws no more", lambda s: _forward(s, nodes=s.forward.nodes[1:]), "no draw, write or effect is lost"),
    (
        "forward in another order",
        lambda s: _forward(s, nodes=(s.forward.nodes[1], s.forward.nodes[0], *s.forward.nodes[2:])),
        "forward is the program's forward",
    ),
    ("forward lacks what it reads", lambda s: _forward(s, nodes=s.forward.nodes[:1]), "a half gives only what it has"),
    ("a copy is lost", lambda s: _backward(s, nodes=s.backward.nodes[1:]), "a half reads only its own inputs"),
    ("a copy runs twice", _twice, "nothing runs again twice"),
    ("a draw runs again", _draws_again, "only pure nodes run again"),
    ("a copy reads other values", _other_number, "what runs again ran in forward"),
    ("a copy applies something else", lambda s: _swap_node(s, 0, target=PRODUCT), "what runs again ran in forward"),
    ("a copy lies in old memory", _old_memory, "what runs again lies as in forward"),
    (
        "a node of backward reads the base of a view",
        lambda s: _swap_node(s, 2, args=(s.backward.inputs[-1], _again(s, "v1_0_again"))),
        "a node of backward reads the same values",
    ),
    (
        "a node of backward reads an older value",
        lambda s: _swap_node(s, 3, args=(s.backward.inputs[-1], _again(s, "v1_0_again"))),
        "a node of backward reads the same values",
    ),
    ("a node of backward is another", lambda s: _swap_node(s, 3, target=PRODUCT), "reads the same values"),
    ("a node of backward is lost", lambda s: _backward(s, nodes=s.backward.nodes[:-1]), "gives only what it has"),
    (
        "a residual is not given",
        lambda s: _forward(
            s,
            outputs=s.forward.outputs[:1],
            signature=dataclasses.replace(s.forward.signature, outputs=(UserOutput(0),)),
        ),
        "forward gives each residual",
    ),
    (
        "residuals are named otherwise",
        lambda s: dataclasses.replace(s, residuals=("q",)),
        "forward gives each residual",
    ),
    (
        "a residual is another value",
        lambda s: _forward(s, outputs=(*s.forward.outputs[:-1], s.forward.nodes[1].outputs[0])),
        "a residual is what forward gives",
    ),
    ("an output is lost", lambda s: _backward(s, outputs=()), "each output is given once"),
]


@pytest.mark.parametrize(("change", "rule"), [c[1:] for c in CORRUPTIONS], ids=[c[0] for c in CORRUPTIONS])
def test_a_corruption_is_named(change: Callable[[Split], Split], rule: str) -> None:
    program = _program()
    split = _split(program)
    verify_recomputation(program, split)
    with pytest.raises(InvalidProgram) as caught:
        verify_recomputation(program, change(split))
    assert rule in str(caught.value)


def test_an_input_that_is_written_is_not_read_again() -> None:
    maker = Maker({"x": 8})
    (a,) = maker.apply(POINTWISE, *maker.inputs)
    (b,) = maker.apply(POINTWISE, a, sizes=(4,))
    tangent = maker.tangent(8)
    (g,) = maker.apply(POINTWISE, tangent, a, late=True)
    program = maker.program([(InputMutation(0, WriteKind.UNTRACKED), b), (Gradient(0), g)])
    with pytest.raises(InvalidProgram, match="backward reads no input that is written"):
        verify_recomputation(program, split_keeping(program, lambda v: False))


def test_default_splits_pass() -> None:
    for seed in range(100):
        program = random_program(seed)
        verify_recomputation(program, split_by_phase(program))


def test_what_backward_reads_of_a_written_input_anyway_stays() -> None:
    program = _program(writes_x=True)
    verify_recomputation(program, _split(program))


def test_equal_nodes_of_forward_may_each_run_again() -> None:
    maker = Maker({"x": 8})
    (a,) = maker.apply(POINTWISE, *maker.inputs)
    (b,) = maker.apply(POINTWISE, *maker.inputs)
    tangent = maker.tangent(8)
    (g,) = maker.apply(POINTWISE, tangent, a, b, late=True)
    program = maker.program([(Gradient(0), g)])
    split = split_keeping(program, lambda v: False)
    verify_recomputation(program, split)
    assert [role for role in split.backward.signature.inputs if isinstance(role, Residual)] == [Residual("x")]
