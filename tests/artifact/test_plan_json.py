"""A call plan written as JSON and read again is an equal plan; what a program cannot carry out is refused."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import dovetail
from dovetail.artifact.json_text import json_bytes, read_json
from dovetail.artifact.plan_json import plan_from_json, plan_to_json
from dovetail.artifact.program_json import program_from_json, program_to_json
from dovetail.errors import NotSerializable
from dovetail.execute.wrapper import wrapper_source
from dovetail.ir import calling
from dovetail.ir.calling import (
    AsLeaf,
    AsParameter,
    CallPlan,
    CountedAlone,
    FlatBytes,
    Formatted,
    FromConstant,
    FromInput,
    FromOutput,
    FromSlot,
    FromView,
    GradientExit,
    GradientFlag,
    LeafGradient,
    Look,
    MetadataChange,
    Move,
    Pack,
    Rebuilt,
    ReplayStep,
    Rewritten,
    ViewBase,
    WithLook,
    WriteBack,
)
from dovetail.ir.program import Program, ScalarMeta, Stage, TensorMeta, Value
from dovetail.ir.signature import WriteKind
from dovetail.ir.sizes import SizeExpr, symbol
from dovetail.torch_compat.subclasses import WrapperLayout

aten = torch.ops.aten
CPU = torch.device("cpu")


def _again(plan: CallPlan, program: Program) -> CallPlan:
    return plan_from_json(read_json(json_bytes(plan_to_json(plan, program))), program)


def _many(x: Tensor, y: Tensor) -> Any:
    z = x * 2
    return [
        z,
        z[1],
        z.t(),
        x.view(-1),
        x,
        y[:, 1:],
        z,
        None,
        3,
        1.5,
        "s",
        torch.float32,
        CPU,
        x.shape,
        True,
        y.detach(),
    ]


def _writes(x: Tensor, y: Tensor) -> Any:
    x.mul_(2)
    y[0].add_(1)
    y.data.zero_()
    return x, x.split(1)[1], y.unsqueeze(0)


def _reshapes(x: Tensor, y: Tensor) -> Any:
    x.unsqueeze_(0)
    y.t_()
    return x + 1, y.as_strided((2,), (1,), 1)


def _unsafe_parts(x: Tensor, y: Tensor) -> Any:
    return torch.unsafe_split(x, 2)[0], torch.unsafe_chunk(y * 2, 2, 1)[1]


def _detached(x: Tensor, y: Tensor) -> Any:
    y = y.detach().requires_grad_()
    with torch.no_grad():
        view = x[1]
    return view, y * 2, x.detach().view(-1)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function", [_many, _writes, _reshapes, _unsafe_parts, _detached])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_plans_of_real_calls(function: Callable[..., Any], dynamic: bool, requires_grad: bool) -> None:
    x, y = torch.randn(3, 4), torch.randn(3, 4)
    if requires_grad:
        x, y = x.requires_grad_() * 1, y.requires_grad_() * 1
    compiled = dovetail.compile(function, dynamic=dynamic)
    if function is _writes and requires_grad:
        y = y.detach()
    compiled(x, y)
    for graph in compiled.graphs:
        plan, program = graph.plan, graph.forward.program
        assert _again(plan, program) == plan
        read = program_from_json(program_to_json(program))
        assert wrapper_source(_again(plan, program), read)[0] == wrapper_source(plan, program)[0]


def test_plans_of_inputs_that_share_memory() -> None:
    def f(x: Tensor, y: Tensor) -> Any:
        x.mul_(2)
        return x + y, y

    base = torch.arange(12.0)
    compiled = dovetail.compile(f)
    compiled(base[:8], base[4:])
    plans = [(graph.plan, graph.forward.program) for graph in compiled.graphs]
    assert any(isinstance(extra, FlatBytes) for plan, _ in plans for extra in plan.extras)
    for plan, program in plans:
        assert _again(plan, program) == plan


def _tensor(name: str, *shape: int | SizeExpr, storage: int) -> Value:
    return Value(name, TensorMeta(shape, (1,) * len(shape), 0, torch.float32, CPU, storage))


S0 = symbol("s0")
X, Y, N, B = (
    _tensor("x", S0, storage=0),
    _tensor("y", 4, storage=1),
    Value("n", ScalarMeta(S0)),
    _tensor("b", 4, storage=1),
)
PROGRAM = Program("program", Stage.FUNCTIONAL, (X, Y, B, N), (), (X, Y, 3))
_STEPS = (
    ReplayStep(aten.split.Tensor, (SizeExpr("floordiv", (S0, 2)),), (("dim", 0),), 1),
    ReplayStep(aten.as_strided.default, ([S0, 2], (0, 1), None)),
    ReplayStep(aten.view.dtype, (torch.bfloat16,)),
)
_VIEW = FromView(0, True, _STEPS, False)
_CONSTANTS = (
    *(None, True, 0, -1.5, float("inf"), complex(0.5, float("-inf")), 'te"xt\n', b"\0bytes", torch.int8, CPU),
    *(torch.Size((2, 3)), torch.Size(()), torch.strided, torch.channels_last, (1, [2, "x"]), 1 << 70, -0.0),
)
PLAN = CallPlan(
    outputs=(
        *map(FromConstant, _CONSTANTS), FromSlot(2), FromInput(1), _VIEW, FromView(1, False, (), True), FromOutput(17),
        Rewritten(_VIEW, 0), AsLeaf(FromSlot(0)), AsLeaf(_VIEW), AsLeaf(Rewritten(_VIEW, 1)),
        AsParameter(FromSlot(0), False), CountedAlone(1, True, (), True),
    ),
    writes=(
        WriteBack(0, 0, WriteKind.TRACKED), WriteBack(1, 1, WriteKind.HIDDEN, _STEPS[2:]),
        WriteBack(1, 1, WriteKind.UNTRACKED, _STEPS[2:]),
    ),
    differentiable=(True, False, False),
    extras=(FlatBytes(1, torch.uint8, 12, 3),),
    extras_at=2,
    metadata=(MetadataChange(1, aten.transpose_.default, (0, -1)),),
    flags=(GradientFlag(0, True, True), GradientFlag(1, False, False)),
    touched=(0, 1),
)  # fmt: skip


def test_every_rule() -> None:
    read = _again(PLAN, PROGRAM)
    assert read == PLAN
    types = [type(rule.value) for rule in read.outputs if isinstance(rule, FromConstant)]
    assert types == [type(value) for value in _CONSTANTS]
    plan = CallPlan((), (), (), extras=(ViewBase(0),), extras_at=2)
    assert _again(plan, PROGRAM) == plan
    rules = {
        cls.__name__ for cls in vars(calling).values() if isinstance(cls, type) and cls.__module__ == calling.__name__
    }
    assert rules - set(json_bytes(plan_to_json(PLAN, PROGRAM)).decode().replace('"', " ").split()) == {
        "ViewBase", "Rebuilt", "Pack",
        "FromLeft", "Look", "WithLook", "Formatted", "GradientExit", "LeafGradient", "Move",  # of steps
    }  # fmt: skip


def test_a_nan_comes_back() -> None:
    (rule,) = _again(CallPlan((FromConstant(float("nan")),), (), ()), PROGRAM).outputs
    assert isinstance(rule, FromConstant)
    assert rule.value != rule.value


_LAYOUT = WrapperLayout(torch.Tensor, (), None, (), ())


@pytest.mark.parametrize(
    ("plan", "match"),
    [
        (CallPlan((Rebuilt(_LAYOUT, ()),), (), ()), "it holds a Rebuilt"),
        (CallPlan((), (), (), packs=(Pack(_LAYOUT, ()),)), "wrappers of tensors"),
        (CallPlan((), (), (), gradients=(LeafGradient(0, True, False, GradientExit.SAME),)), "holds gradients, which"),
        (CallPlan((), (), (), moves=(Move(0, FromInput(1)),)), "it holds moves"),
        (CallPlan((), (), (), left=(FromSlot(0),)), "it holds left"),
        (CallPlan((), (), (), apart=(0,)), "it holds apart"),
        (CallPlan((WithLook(FromSlot(0), Look()),), (), (True,)), "it holds a WithLook"),
        (CallPlan((Formatted(("x",)),), (), ()), "it holds a Formatted"),
        (CallPlan((FromConstant(object()),), (), ()), "an operand is a object"),
        (CallPlan((FromConstant(WriteKind.HIDDEN),), (), ()), "an operand is a WriteKind"),
        (CallPlan((FromConstant(S0),), (), ()), "a constant result is a size"),
        (CallPlan((FromConstant([X]),), (), ()), "a value is used where no values are allowed"),
        (CallPlan((FromSlot(3),), (), ()), "no output 3"),
        (CallPlan((FromView(2, False, (), True),), (), ()), "an output that is used as a tensor is not a tensor"),
        (CallPlan((AsLeaf(FromSlot(2)),), (), ()), "an output that is used as a tensor is not a tensor"),
        (CallPlan((), (), (), touched=(3,)), "an input that is used as a tensor is not a tensor"),
        (CallPlan((FromInput(-1),), (), ()), "no input -1"),
        (CallPlan((FromOutput(0),), (), ()), "result 0 is not computed before result 0"),
        (CallPlan((), (), (), touched=(4,)), "no input 4"),
        (CallPlan((FromInput(2),), (), (), extras=(ViewBase(0),), extras_at=2), "no input 2 that a call passes"),
        (CallPlan((), (), (), extras=(ViewBase(0),), extras_at=4), "extra inputs are not inputs"),
        (CallPlan((FromView(0, True, (ReplayStep(print, ()),), False),), (), ()), "is not an operator that views"),
        (CallPlan((FromView(0, True, (ReplayStep(aten.view.default, ([symbol("s9")],)),), False),), (), ()), "size s9"),
        (CallPlan((), (), (), metadata=(MetadataChange(0, aten.resize_.default, ([S0],)),)), "only known when"),
        (CallPlan((), (WriteBack(0, 0, WriteKind.TRACKED, _STEPS),), ()), "goes to a view"),
    ],
)
def test_what_cannot_be_written(plan: CallPlan, match: str) -> None:
    with pytest.raises(NotSerializable, match=match):
        plan_to_json(plan, PROGRAM)


_STEP = ("plan", "outputs", 19, "steps", 0)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("format",), "x"),
        (("version",), 2),
        (("more",), 1),
        (("plan",), None),
        (("plan", "outputs"), {}),
        (("plan", "outputs", 0), {"rule": "Pack", "layout": None, "slots": []}),
        (("plan", "outputs", 0), {"rule": "__class__"}),
        (("plan", "outputs", 0), {"rule": "FromConstant", "value": {"value": "x"}}),
        (("plan", "outputs", 0), {"rule": "FromConstant", "value": {"global": "os.system"}}),
        (("plan", "outputs", 0), {"rule": "FromConstant", "value": {"dtype": "load"}}),
        (("plan", "outputs", 0), {"rule": "FromConstant", "value": {"device": "cpu; import os"}}),
        (("plan", "outputs", 0), {"rule": "FromConstant", "value": {"torch_size": ["a"]}}),
        (("plan", "outputs", 0), {"rule": "FromConstant", "value": {"complex": [1.0]}}),
        (("plan", "outputs", 0), {"rule": "FromConstant", "value": {"bytes": "zz"}}),
        (("plan", "outputs", 0), {"rule": "FromConstant", "value": {"float": "1_0"}}),
        (("plan", "outputs", 17, "slot"), True),
        (("plan", "outputs", 17, "slot"), "0"),
        (("plan", "outputs", 17, "slot"), 99),
        (("plan", "outputs", 17, "more"), 99),
        ((*_STEP, "target"), "os.system"),
        ((*_STEP, "target"), "torch.ops.aten.from_file.default"),
        ((*_STEP, "target"), "operator.add"),
        ((*_STEP, "target"), "torch.ops.aten.split . Tensor"),
        ((*_STEP, "kwargs"), [["dim=0)+print(1", 0]]),
        ((*_STEP, "kwargs"), [["lambda", 0]]),
        ((*_STEP, "args"), [{"size": ["symbol", "s0); print(1"]}]),
        ((*_STEP, "args"), [{"size": ["symbol", "print"]}]),
        ((*_STEP, "args"), [{"size": ["add"]}]),
        ((*_STEP, "args"), [{"size": ["where", 1]}]),
        ((*_STEP, "args"), [{"size": ["exec", 1]}]),
        ((*_STEP, "index"), "0"),
        (("plan", "writes", 0, "kind"), "other"),
        (("plan", "extras", 0, "dtype"), "float32, print(1)"),
        (("plan", "extras", 0, "length"), "1); print(1"),
        (("plan", "extras_at"), -1),
        (("plan", "metadata", 0, "target"), "prims.EXPECT"),
        (("plan", "differentiable"), [1]),
    ],
)
def test_forged_plans(path: tuple[Any, ...], value: Any) -> None:
    data: Any = copy.deepcopy(json.loads(json_bytes(plan_to_json(PLAN, PROGRAM))))
    place = data
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(ValueError, match=r"."):
        plan_from_json(data, PROGRAM)
