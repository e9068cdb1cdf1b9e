"""A program written as JSON and read again is the same program; what is read runs nothing."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

import dovetail
from dovetail.artifact.program_json import program_from_json, program_to_json
from dovetail.artifact.target_text import other_packages, read_target, target_text
from dovetail.errors import NotSerializable
from dovetail.ir.fx_lift import lift
from dovetail.ir.program import Node, Origin, Phase, Program, ScalarMeta, Stage, TensorMeta, Value
from dovetail.ir.signature import Gradient, InputMutation, Signature, Tangent, UserInput, UserOutput, WriteKind
from dovetail.ir.sizes import SizeExpr, symbol
from dovetail.ops import prims
from dovetail.pipeline.driver import program_text
from tests.harness.functional_programs import functional_program

aten = torch.ops.aten
CPU = torch.device("cpu")


def _tensor(name: str, *shape: int | SizeExpr, storage: int = 0, dtype: torch.dtype = torch.float32) -> Value:
    return Value(name, TensorMeta(shape, tuple(1 for _ in shape), 0, dtype, CPU, storage))


def _again(program: Program) -> Program:
    written = json.loads(json.dumps(program_to_json(program), allow_nan=False))
    return program_from_json(written, allow=other_packages([node.target for node in program.nodes]))


def _facts(program: Program) -> Any:
    """All of a program, with names in place of values."""
    values = [*program.inputs, *(value for node in program.nodes for value in node.results())]
    nodes = [
        (n.target, repr(n.args), repr(n.kwargs), repr(n.outputs), n.unpack, n.phase, n.origin, n.recomputed)
        for n in program.nodes
    ]  # fmt: skip
    metas = [(value.name, value.meta) for value in values]
    return program.name, program.stage, metas, nodes, repr(program.outputs), program.signature


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_random_programs(first: int) -> None:
    for seed in range(first, first + 50):
        program = replace(functional_program(seed).program(), stage=Stage.IMPURE)
        assert _facts(_again(program)) == _facts(program)


def _all_kinds() -> Any:
    """An operator with an operand of each kind."""
    if not hasattr(torch.ops.dovetail_reading, "all_kinds"):
        torch.library.define(
            "dovetail_reading::all_kinds",
            "(Tensor a, Tensor[] more, *, ScalarType dtype, Layout layout, Device device, MemoryFormat memory_format, "
            "float value, Scalar other, bool flag, str text, Tensor? nothing, SymInt[] sizes, float tiny) -> Tensor",
        )
    return torch.ops.dovetail_reading.all_kinds.default


def test_all_that_a_program_can_hold() -> None:
    s0 = symbol("s0")
    x, y, n = _tensor("x", s0, 4), _tensor("y", SizeExpr("mul", (s0, 2)), 4, storage=1), Value("n", ScalarMeta(s0))
    a, b = _tensor("a", 2, storage=2, dtype=torch.bfloat16), _tensor("b", 2, storage=3, dtype=torch.complex64)
    kwargs = (
        ("dtype", torch.float8_e4m3fn), ("layout", torch.strided), ("device", torch.device("cpu")),
        ("memory_format", torch.preserve_format), ("value", -math.inf), ("other", complex(1.5, math.nan)),
        ("flag", True), ("text", 'a "quoted" é'), ("nothing", None), ("sizes", (s0, 3, SizeExpr("add", (s0, 1)))),
        ("tiny", 5e-324),
    )  # fmt: skip
    nodes = (
        Node(aten.split.Tensor, (x, 2), outputs=(a, None), unpack=True, origin=Origin("model.py", 3, "f", "m.0")),
        Node(prims.view_scatter(aten.split.Tensor, 1), (y, a, 2), (), (), False, Phase.BACKWARD, Origin(), True),
        Node(_all_kinds(), (a, [x, y]), kwargs, (b,)),
        Node(torch.sym_max, (n, 3), outputs=(Value("m", ScalarMeta(SizeExpr("max", (s0, 3)))),)),
    )
    roles = Signature(
        (UserInput(0), Tangent(1), UserInput(2)),
        (UserOutput(0), InputMutation(1, WriteKind.HIDDEN, True), Gradient(0)),
    )
    nodes = (*nodes, replace(nodes[0], outputs=(), recomputed=True))
    program = Program("all_of_it", Stage.IMPURE, (x, y, n), nodes, (a, 3, None), roles)
    assert repr(_facts(_again(program))) == repr(_facts(program))  # NaN is not equal to itself


class _Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return torch.nn.functional.dropout(self.linear(x).split(2, dim=1)[0].relu(), 0.5).sum()


@pytest.mark.parametrize("dynamic", [False, True])
def test_every_step_of_a_compilation_is_dumped_as_a_program(tmp_path: Path, dynamic: bool) -> None:
    dovetail.compile(_Net(), dump=str(tmp_path), dynamic=dynamic)(torch.randn(3, 4)).backward()
    read = 0
    for path in tmp_path.rglob("*.json"):
        program = program_from_json(json.loads(path.read_text())["program"])
        assert f"{program_text(program)}" in _without_comments(path.with_suffix(".py").read_text())
        read += 1
    assert read >= 10


def _without_comments(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("del ")) + "\n"


def test_what_cannot_be_written() -> None:
    generator = torch.Generator()
    node = Node(aten.rand.generator, ([2],), (("generator", generator),), (_tensor("x", 2),))
    with pytest.raises(NotSerializable, match="an operand is a Generator"):
        program_to_json(Program("draws", Stage.FUNCTIONAL, (), (node,), ()))
    x = torch.randn(3)
    traced = make_fx(lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)))(x)
    with pytest.raises(NotSerializable, match="calls subgraphs"):
        program_to_json(lift(traced, (x,)).program)


@pytest.mark.parametrize(
    "text",
    [
        "torch.ops.aten.add.Tensor",
        "torch.ops.prims.iota.default",
        "torch.ops.aten.__and__.Tensor",
        "operator.mul",
        "torch.sym_max",
        "math.floor",
        "prims.EXPECT",
        "prims.view_scatter(torch.ops.aten.split.Tensor, 1)",
        "prims.functional_form(torch.ops.aten.add_.Tensor, (0,))",
    ],
)
def test_targets_are_read_as_they_are_written(text: str) -> None:
    assert read_target(target_text(read_target(text))) is read_target(text)


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "torch.load",
        "torch.ops.load_library('x.so')",
        "torch.save(1, 'x')",
        "open",
        "eval",
        "operator.getitem",
        "operator.attrgetter('x')",
        "prims.torch.load",
        "prims.__builtins__",
        "prims.functional_form.__globals__",
        "torch.ops.aten.add.Tensor.__init__",
        "torch.ops.aten.add",
        "torch.ops.aten.no_such_operator.default",
        "getattr(torch, 'load')",
        "[print for x in (1,)]",
        "1 +",
        "",
    ],
)
def test_nothing_else_is_a_target(text: str) -> None:
    with pytest.raises(ValueError, match=r"no operator|not an operator|not known|not a name|not a primitive|not have"):
        read_target(text)


def test_damaged_data() -> None:
    data = program_to_json(functional_program(3).program())
    for key in ("values", "nodes", "stage"):
        with pytest.raises(ValueError, match="damaged"):
            program_from_json({name: value for name, value in data.items() if name != key})
    with pytest.raises(ValueError, match="format"):
        program_from_json([])
    with pytest.raises(ValueError, match="version 99"):
        program_from_json({**data, "version": 99})
    with pytest.raises(ValueError, match="not a valid dtype"):
        program_from_json({**data, "values": [{**data["values"][0], "dtype": "load"}]})


@pytest.mark.parametrize("name", ["torch", "print", "args", "run", "_", "lambda", "__init__", "a b", "s0", "é", "x; y"])
def test_names_that_mean_something_else_in_source(name: str) -> None:
    s0 = symbol("s0")
    x = _tensor("x", s0)
    program = Program("f", Stage.FUNCTIONAL, (x,), (Node(aten.relu.default, (x,), outputs=(_tensor("y", s0),)),), (x,))
    renamed = replace(program, inputs=(bad := Value(name, x.meta),), nodes=(), outputs=(bad,))
    with pytest.raises(NotSerializable, match=r"name|word|meaning"):
        program_to_json(renamed)
    data = program_to_json(program)
    with pytest.raises(ValueError, match=r"name|word|meaning"):
        program_from_json(json.loads(json.dumps(data).replace('"x"', json.dumps(name))))
    with pytest.raises(ValueError, match=r"name|word|meaning"):
        program_from_json(json.loads(json.dumps(data).replace('"s0"', json.dumps("x" if name == "s0" else name))))


@pytest.mark.parametrize(
    ("path", "value", "match"),
    [
        (("name",), "../x", "not a name for a program"),
        (("nodes", 0, "kwargs"), {"x=1": 2}, "not a name"),
        (("nodes", 0, "args"), [{"value": "later"}], "read before it is computed"),
        (("nodes", 0, "unpack"), 1, "not a truth value"),
        (("nodes", 0, "target"), "torch.ops.aten.from_file.default", "not an operator that a file can name"),
        (("origins", 0, 0), "model.py\nimport os", "not a single line of text"),
        (("origins", 0, 1), "1", "not a number of a line"),
        (("values", 0, "shape"), [-3], "not a size"),
        (("values", 0, "shape"), [2, 2], "no tensor"),
        (("values", 0, "shape"), [["where", 1, 2]], "not a serialised size"),
        (("values", 0, "storage"), "0", "no tensor"),
        (("values", 0, "device"), "nowhere", "not a device"),
        (("values", 0, "more"), 0, "not written as"),
        (("signature", "inputs"), [{"role": "Tangent", "output": "0"}], "not a valid int"),
        (("signature", "inputs"), [{"role": "Tangent", "output": 0}] * 2, "one role for each input"),
        (("signature", "inputs"), [{"role": "UserOutput", "slot": 0}], "is not a valid role"),
    ],
)
def test_data_that_describes_no_program(path: tuple[Any, ...], value: Any, match: str) -> None:
    x, later = _tensor("x", 3), _tensor("later", 3)
    nodes = (Node(aten.relu.default, (x,), outputs=(_tensor("y", 3),)), Node(aten.relu.default, (x,), outputs=(later,)))
    data = json.loads(json.dumps(program_to_json(Program("f", Stage.FUNCTIONAL, (x,), nodes, (x,)))))
    place = data
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(ValueError, match=match):
        program_from_json(data)
