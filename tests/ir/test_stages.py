"""One broken program for each rule of a stage, and the whole message it gives."""

from __future__ import annotations

import pytest
import torch

from dovetail.errors import InvalidProgram
from dovetail.ir.program import Node, Origin, Phase, Program, Stage, TensorMeta, Value
from dovetail.ir.signature import Signature, UserInput, UserOutput
from dovetail.ir.stages import verify_program
from dovetail.pipeline.driver import writes

aten = torch.ops.aten


def _value(name: str, storage: int) -> Value:
    return Value(name, TensorMeta((2,), (1,), 0, torch.float32, torch.device("cpu"), storage))


X, Y, Z = (_value(name, i) for i, name in enumerate("xyz"))
SIN = Node(aten.sin.default, (X,), outputs=(Y,))
COS = Node(aten.cos.default, (Y,), outputs=(Z,), origin=Origin("model.py", 3, "forward"))
LATE_SIN = Node(aten.sin.default, (X,), outputs=(Y,), phase=Phase.BACKWARD)
WRITE = Node(aten.mul_.Tensor, (Y, 2), outputs=())


def _program(
    nodes: tuple[Node, ...], output: object = Z, stage: Stage = Stage.FUNCTIONAL, inputs: tuple[Value, ...] = (X,)
) -> Program:
    signature = Signature(tuple(UserInput(i) for i in range(len(inputs))), (UserOutput(0),))
    return Program("f", stage, inputs, nodes, (output,), signature)


def _roles(inputs: int, outputs: int) -> Program:
    signature = Signature(tuple(map(UserInput, range(inputs))), tuple(map(UserOutput, range(outputs))))
    return Program("f", Stage.FUNCTIONAL, (X,), (SIN,), (Y,), signature)


BROKEN = [
    (_program((SIN, Node(aten.cos.default, (Y,), outputs=(_value("a b", 3),)))), "names are Python names", "'a b'", ""),
    (
        _program((SIN, Node(aten.cos.default, (Y,), outputs=(_value("x", 3),)))),
        "names are unique",
        "x appears twice",
        "",
    ),
    (_program((SIN, COS), inputs=(X, _value("x", 4))), "names are unique", "x appears twice", ""),
    (_roles(2, 1), "each input has a role", "1 inputs, 2 roles", ""),
    (_roles(1, 0), "each output has a role", "1 outputs, 0 roles", ""),
    (_program((COS, SIN)), "operands are computed before they are read", "y", "z"),
    (_program((SIN,), Z), "outputs are computed by the program", "z", ""),
    (_program((SIN,), [Y, (Z,)]), "outputs are computed by the program", "z", ""),
    (_program((SIN, WRITE, COS)), "no operator writes an operand", "aten.mul_.Tensor does", "aten.mul_.Tensor"),
    (_program((LATE_SIN, COS)), "forward nodes come before backward nodes", "phases are mixed", ""),
    (
        _program((SIN, Node(aten.cos.default, (Y,), outputs=(Z,), phase=Phase.BACKWARD)), stage=Stage.SPLIT),
        "a half has one phase",
        "phases are mixed",
        "",
    ),
]


@pytest.mark.parametrize(
    ("program", "rule", "detail", "node"), BROKEN, ids=[f"{r}-{n}" for n, (_, r, _, _) in enumerate(BROKEN)]
)
def test_a_broken_program_is_named(program: Program, rule: str, detail: str, node: str) -> None:
    with pytest.raises(InvalidProgram) as caught:
        verify_program(program, writes)
    stage = program.stage.value
    expected = InvalidProgram(
        program="f", stage=stage, rule=rule, detail=detail, node=node, origin=str(COS.origin) if node == "z" else ""
    )
    assert str(caught.value) == str(expected)
    lines = str(caught.value).splitlines()
    assert lines[0] == f"DT-INTERNAL-001 InvalidProgram: program f breaks a rule of stage '{stage}': {rule}."
    assert f"  because   {detail}" in lines
    if node:
        assert f"  node      {node}" in lines
    if node == "z":
        assert "  from      model.py:3 in forward" in lines


@pytest.mark.parametrize("stage", list(Stage))
def test_a_sound_program_passes(stage: Stage) -> None:
    verify_program(_program((SIN, COS), stage=stage), writes)


def test_an_impure_program_may_write_and_mix_phases() -> None:
    verify_program(_program((LATE_SIN, WRITE, COS), stage=Stage.IMPURE), writes)


def test_a_functional_program_may_have_two_phases_in_order() -> None:
    late = Node(aten.cos.default, (Y,), outputs=(Z,), phase=Phase.BACKWARD)
    verify_program(_program((SIN, late)), writes)
