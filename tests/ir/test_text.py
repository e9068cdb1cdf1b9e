"""The text of a program, line by line."""

from __future__ import annotations

import math
import re
from textwrap import dedent

import pytest
import torch
from torch import Tensor

import dovetail
from dovetail.analysis.liveness import last_uses
from dovetail.errors import InvalidProgram
from dovetail.ir.program import Node, Origin, Program, ScalarMeta, Stage, TensorMeta, Value
from dovetail.ir.sizes import Size, SizeExpr, symbol
from dovetail.ir.text import Names, emit, identifier, plain_call
from dovetail.ops import prims

aten = torch.ops.aten
S0 = symbol("s0")


def _tensor(name: str, *shape: Size, storage: int = 0, dtype: torch.dtype = torch.float32) -> Value:
    strides: tuple[Size, ...] = tuple(1 for _ in shape)
    return Value(name, TensorMeta(shape, strides, 0, dtype, torch.device("cpu"), storage))


def _program(inputs: tuple[Value, ...], nodes: tuple[Node, ...], *outputs: object) -> Program:
    return Program("small", Stage.FUNCTIONAL, inputs, nodes, outputs)


def _text(program: Program, **options: object) -> str:
    return emit(program, plain_call, last_uses(program), comments=False, **options).text  # type: ignore[arg-type]


X, Y, Z = _tensor("x", 4), _tensor("y", 4, storage=1), _tensor("z", 4, storage=2)


def test_a_program_without_nodes() -> None:
    assert _text(_program((), ())) == "def run(args):\n    args.clear()\n    return ()\n"


def test_single_outputs_and_values_that_die() -> None:
    first = Node(aten.sin.default, (X,), outputs=(Y,))
    second = Node(aten.mul.Tensor, (Y, Y), outputs=(Z,))
    assert _text(_program((X,), (first, second), Z)) == dedent("""\
        def run(args):
            x, = args
            args.clear()
            y = torch.ops.aten.sin.default(x)
            del x
            z = torch.ops.aten.mul.Tensor(y, y)
            del y
            return (z,)
        """)


def test_inputs_that_nobody_reads_die_first_and_unread_results_at_once() -> None:
    node = Node(aten.sin.default, (X,), outputs=(Z,))
    assert _text(_program((X, Y), (node,), X, X)) == dedent("""\
        def run(args):
            x, y = args
            args.clear()
            del y
            z = torch.ops.aten.sin.default(x)
            del z
            return (x, x)
        """)


def test_results_in_a_sequence_and_no_results() -> None:
    split = Node(aten.split.Tensor, (X, 2), outputs=(Y, None), unpack=True)
    alone = Node(aten.unbind.int, (Y,), outputs=(Z,), unpack=True)
    effect = Node(prims.MANUAL_SEED, (3,))
    assert _text(_program((X,), (split, alone, effect), Z)) == dedent("""\
        def run(args):
            x, = args
            args.clear()
            y, _ = torch.ops.aten.split.Tensor(x, 2)
            del x
            z, = torch.ops.aten.unbind.int(y)
            del y
            prims.MANUAL_SEED(3)
            return (z,)
        """)


@pytest.mark.parametrize(
    ("operand", "text"),
    [
        (math.inf, "math.inf"),
        (-math.inf, "-math.inf"),
        (math.nan, "math.nan"),
        (-0.0, "-0.0"),
        (1e-300, "1e-300"),
        (True, "True"),
        (complex(math.inf, -0.0), "complex(math.inf, -0.0)"),
        (None, "None"),
        ("mean", "'mean'"),
        ([], "[]"),
        ((1,), "(1,)"),
        ([X, (1, None)], "[x, (1, None)]"),
        (torch.bfloat16, "torch.bfloat16"),
        (torch.channels_last, "torch.channels_last"),
        (torch.strided, "torch.strided"),
        (SizeExpr("add", (S0, 1)), "s0 + 1"),
    ],
)
def test_operands(operand: object, text: str) -> None:
    names = Names()
    assert names.text(operand) == text
    assert not names.globals


def test_devices_and_generators_are_named_apart_from_values() -> None:
    device, generator = torch.device("cuda:1"), torch.Generator()
    names = Names(taken=frozenset({"_generator"}))
    assert [names.text(o) for o in (device, generator, torch.Generator(), device)] == [
        "_cuda_1",
        "_generator_2",
        "_generator_3",
        "_cuda_1",
    ]
    assert names.globals["_cuda_1"] is device
    assert names.globals["_generator_2"] is generator


def test_keyword_operands_and_devices_in_a_program() -> None:
    keywords = (("dtype", torch.float64), ("device", torch.device("cpu")))
    program = _program((), (Node(aten.full.default, ([2], -math.inf), keywords, (Z,)),), Z)
    source = emit(program, plain_call, {}, comments=False)
    assert "z = torch.ops.aten.full.default([2], -math.inf, dtype=torch.float64, device=_cpu)" in source.text
    namespace: dict[str, object] = {"torch": torch, "math": math, **source.globals}
    exec(source.text, namespace)
    (result,) = namespace["run"]([])  # type: ignore[operator]
    assert torch.equal(result, torch.full((2,), -math.inf, dtype=torch.float64))


@pytest.mark.parametrize(
    ("value", "line"),
    [
        (_tensor("x", 3, S0), "s0 = x.size(1)"),
        (Value("x", TensorMeta((3, 4), (S0, 1), 0, torch.float32, torch.device("cpu"), 0)), "s0 = x.stride(0)"),
        (Value("x", TensorMeta((3,), (1,), S0, torch.float32, torch.device("cpu"), 0)), "s0 = x.storage_offset()"),
        (Value("number", ScalarMeta(S0)), "s0 = number"),
    ],
)
def test_size_symbols_are_read_off_the_inputs(value: Value, line: str) -> None:
    node = Node(aten.ones.default, ([SizeExpr("mul", (S0, 2))],), outputs=(Z,))
    lines = _text(_program((value,), (node,), Z)).splitlines()
    assert lines[3].strip() == line
    assert "    z = torch.ops.aten.ones.default([s0 * 2])" in lines


def test_a_number_input_is_preferred_and_needs_no_line_under_its_own_name() -> None:
    number = Value("s0", ScalarMeta(S0))
    node = Node(aten.ones.default, ([S0],), outputs=(Z,))
    assert "    s0 = " not in _text(_program((_tensor("x", S0), number), (node,), Z))


def test_a_symbol_made_by_a_node() -> None:
    number = Value("item", ScalarMeta(symbol("u0")))
    made = Node(aten._local_scalar_dense.default, (X,), outputs=(number,))
    used = Node(aten.ones.default, ([symbol("u0")],), outputs=(Z,))
    lines = _text(_program((X,), (made, used), Z, number)).splitlines()
    assert lines[3:5] == ["    item = torch.ops.aten._local_scalar_dense.default(x)", "    u0 = item"]


def test_a_symbol_that_nothing_binds() -> None:
    program = _program((X,), (Node(aten.ones.default, ([S0],), outputs=(Z,)),), Z)
    with pytest.raises(InvalidProgram, match=r"every size symbol is bound\.\n  because   s0"):
        _text(program)


def test_comments_say_shape_and_line() -> None:
    origin = Origin("model.py", 12, "forward", "layers.0")
    node = Node(aten.sin.default, (X,), outputs=(Y,), origin=origin)
    text = emit(_program((X,), (node,), Y), plain_call, {}).text
    line = f"{'y = torch.ops.aten.sin.default(x)':<88}  # f32[4]   model.py:12 in forward   (layers.0)"
    assert text.splitlines()[3] == f"    {line}"


@pytest.mark.parametrize(
    ("origin", "text"),
    [
        (Origin(), ""),
        (Origin(module="mlp"), "mlp"),
        (Origin("a.py", 3), "a.py:3"),
        (Origin("a.py", 3, "f"), "a.py:3 in f"),
    ],
)
def test_origins(origin: Origin, text: str) -> None:
    assert str(origin) == text


def test_lines_point_at_their_nodes() -> None:
    nodes = (Node(aten.sin.default, (X,), outputs=(Y,)), Node(aten.cos.default, (Y,), outputs=(Z,)))
    program = _program((X,), nodes, Z)
    source = emit(program, plain_call, last_uses(program))
    lines = source.text.splitlines()
    assert ["sin" in lines[source.lines[0] - 1], "cos" in lines[source.lines[1] - 1]] == [True, True]


def test_ranges_group_neighbours() -> None:
    modules = ["", "a", "a", "b", ""]
    values = [X, *(_tensor(f"v{i}", 4, storage=i + 1) for i in range(5))]
    nodes = tuple(
        Node(aten.sin.default, (values[i],), outputs=(values[i + 1],), origin=Origin(module=module))
        for i, module in enumerate(modules)
    )
    program = _program((X,), nodes, values[-1])
    text = emit(program, plain_call, {}, comments=False, ranges=lambda node: node.origin.module).text
    assert re.findall(r"( +)(?:with record_function\('(\w)'\)|v(\d))", text) == [
        ("    ", "", "0"),
        ("    ", "a", ""),
        ("        ", "", "1"),
        ("        ", "", "2"),
        ("    ", "b", ""),
        ("        ", "", "3"),
        ("    ", "", "4"),
    ]


@pytest.mark.parametrize(
    ("wish", "name"),
    [
        ("x", "x"),
        ("layers.0.weight", "layers_0_weight"),
        ("0", "_0"),
        ("", "value"),
        ("größe", "gr__e"),
        ("sum", "sum_"),
        ("lambda", "lambda_"),
        ("match", "match_"),
        ("torch", "torch_"),
        ("args", "args_"),
        ("outs", "outs_"),
        ("record_function", "record_function_"),
    ],
)
def test_identifiers_shadow_nothing(wish: str, name: str) -> None:
    assert identifier(wish) == name
    assert name.isidentifier()


def test_a_function_with_names_that_shadow_builtins_runs() -> None:
    def run(x: Tensor) -> Tensor:
        return x * complex(2)

    class Module(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name in ("outs", "run", "complex", "args"):
                self.register_buffer(name, torch.ones(2))

        def forward(self, x: Tensor) -> Tensor:
            self.outs.add_(x)
            return run(self.outs + self.run + self.complex + self.args)

    module, eager = Module(), Module()
    x = torch.randn(2)
    assert torch.equal(dovetail.compile(module)(x), eager(x))
    assert torch.equal(module.outs, eager.outs)


@pytest.mark.parametrize("name", ["x; import os", "lambda", "__class__", "x\n", "a b", ""])
def test_no_source_is_made_of_names_that_are_no_names(name: str) -> None:
    meta = TensorMeta((2,), (1,), 0, torch.float32, torch.device("cpu"), 0)
    x, y = Value("x", meta), Value(name, meta)
    relu = torch.ops.aten.relu.default
    programs = [
        Program("f", Stage.FUNCTIONAL, (y,), (), (y,)),
        Program("f", Stage.FUNCTIONAL, (x,), (Node(relu, (x,), outputs=(y,)),), (y,)),
        Program("f", Stage.FUNCTIONAL, (x,), (Node(relu, (x,), ((name, 1),)),), (x,)),
        Program("f", Stage.FUNCTIONAL, (x,), (), (symbol(name),)),
    ]
    for program in programs:
        with pytest.raises(InvalidProgram, match="plain names"):
            emit(program, plain_call, {})


def test_comments_have_one_line() -> None:
    x = Value("x", TensorMeta((2,), (1,), 0, torch.float32, torch.device("cpu"), 0))
    y = Value("y", x.meta)
    origin = Origin("model.py\nimport os\u2028", 3, "f\r", "m")
    node = Node(torch.ops.aten.relu.default, (x,), outputs=(y,), origin=origin)
    plain, commented = (
        emit(Program("f", Stage.FUNCTIONAL, (x,), (node,), (y,)), plain_call, {}, comments=comments).text
        for comments in (False, True)
    )
    assert len(plain.splitlines()) == len(commented.splitlines())
