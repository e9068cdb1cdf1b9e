"""Forged programs: what they may call, with what, and what they may say of their values. Each is refused when read."""

from __future__ import annotations

import copy
import dataclasses
import math
import operator
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import dovetail
from dovetail.artifact.container import open_container, write_container
from dovetail.artifact.plan_json import plan_from_json, plan_to_json
from dovetail.artifact.program_json import program_from_json, program_to_json
from dovetail.artifact.target_text import Allowed, listed_operators, read_target, target_text
from dovetail.errors import BadArtifact, BadOptionValue, NotSerializable, RefusedOperands
from dovetail.ir.calling import CallPlan, FromSlot, GradientFlag
from dovetail.ir.program import Node, Program, ScalarMeta, Stage, TensorMeta, Value
from dovetail.ir.signature import Signature, UserInput, UserOutput
from dovetail.ir.sizes import SizeExpr, symbol
from dovetail.ops import prims
from dovetail.ops.bounded import BOUNDED
from dovetail.ops.preconditions import CHECKED_OPERATORS

aten = torch.ops.aten


def _tensor(name: str, *shape: Any, storage: int = 0, dtype: torch.dtype = torch.float32) -> Value:
    stride = tuple(math.prod(shape[dim + 1 :]) for dim in range(len(shape)))
    return Value(name, TensorMeta(tuple(shape), stride, 0, dtype, torch.device("cpu"), storage))


def _data(*nodes: Node, inputs: tuple[Value, ...], outputs: tuple[Any, ...]) -> Any:
    roles = Signature(
        tuple(UserInput(place) for place in range(len(inputs))), tuple(UserOutput(p) for p in range(len(outputs)))
    )
    return copy.deepcopy(program_to_json(Program("f", Stage.FUNCTIONAL, inputs, nodes, outputs, roles)))


def _honest() -> Any:
    x, y = _tensor("x", 2, 3), _tensor("y", 2, 3, storage=1)
    return _data(Node(aten.relu.default, (x,), outputs=(y,)), inputs=(x,), outputs=(y,))


def _number_call(target: Any, *args: Any) -> Any:
    n, m = Value("n", ScalarMeta(symbol("n"))), Value("m", ScalarMeta(symbol("m0")))
    return _data(Node(target, tuple(n if a == "n" else a for a in args), outputs=(m,)), inputs=(n,), outputs=(m,))


def test_the_honest_program_is_read() -> None:
    assert program_from_json(_honest()).nodes[0].target is aten.relu.default


@pytest.mark.parametrize(
    "text",
    [
        *(f"operator.{name}" for name in dir(operator) if name.startswith("__") or "getter" in name),
        *("operator.call", "operator.methodcaller", "operator.setitem", "operator.getitem", "operator.concat"),
        *("operator.iadd", "operator.contains", "operator.length_hint", "operator.matmul", "operator.is_"),
        *("builtins.eval", "getattr", "type", "divmod", "sum", "math.fsum", "math.prod", "torch.sym_fresh_size"),
        "torch.ops.aten.from_file.default",
        "prims.in_grad_mode(torch.ops.aten.from_file.default)",
        "prims.in_grad_mode(torch.ops.aten.relu.default)",
        "prims.over_parameters(torch.ops.aten.relu.default)",
        "prims.over_parameters(torch.ops.aten.from_file.default)",
        "prims.over_parameters(torch.ops.aten.gru.data)",
        "prims.flat_results(torch.ops.aten.from_file.default)",
        "prims.flat_results(torch.ops.aten.relu.default)",
        "prims.functional_form(torch.ops.aten.from_file.default, (0,))",
        "prims.functional_form(torch.ops.aten.add_.Tensor, (0.0,))",
        "prims.functional_form(torch.ops.aten.add_.Tensor, (False,))",
        "prims.functional_form(torch.ops.aten.add_.Tensor, (1,))",
        "prims.functional_form(torch.ops.aten.set_.source_Tensor, (0,))",
        "prims.functional_form(torch.ops.aten.resize_.default, (0,))",
        "prims.view_scatter(torch.ops.aten.relu.default, None)",
        "prims.view_scatter(torch.ops.aten.split.Tensor, True)",
        "prims.view_scatter(torch.ops.aten.split.Tensor, 1.0)",
        "prims.view_scatter(torch.ops.aten.split.Tensor, -1)",
        "prims.view_scatter(torch.ops.aten._reshape_alias.default, None)",
        "prims.in_grad_mode(prims.in_grad_mode(torch.ops.aten.mkldnn_rnn_layer.default))",
        "prims.packed_linear('relu' )",
        "prims.packed_linear('__class__')",
        "prims.flat_results.__wrapped__",
        "prims.torch",
        "torch.ops.prim.device.default",
        "torch.ops.inductor.accumulate_grad_.default",
        "torch.ops.profiler._record_function_enter.default",
        "torch.ops.aten._print.default",
        "torch.ops.aten.set_.source_Storage_storage_offset",
        "torch.ops.aten.resize_.default",
        "torch.ops.aten._reshape_alias.default",
        "torch.ops.aten._resize_output_.default",
        "torch.ops.aten._weight_int4pack_mm_for_cpu.default",
        "torch.ops.aten._ctc_loss.default",
        "torch.ops.aten._embedding_bag_backward.default",
        "torch.ops.aten._sparse_coo_tensor_unsafe.default",
        "torch.ops.aten._cudnn_rnn.default",
        "torch.ops.aten.backward.default",
        "torch.ops.aten.item.default",
        "torch.ops.prims.device_put.default",
        "torch.ops.prims.resize.default",
        'getattr(torch.ops.aten.relu, "__class__")',
        "torch.ops.aten.__class__.mro",
        "torch.ops.aten.relu.__init__",
        "torch.ops.load_library.x.y",
        "torch.ops.aten.relu.default ",
        "torch.ops.aten.relu.dеfault",  # noqa: RUF001 the e is Cyrillic
        "torch\n.ops.aten.relu.default",
    ],
)
def test_no_file_may_name(text: str) -> None:
    for allowed in (None, Allowed(None)):
        with pytest.raises(ValueError, match=r"no|not|says|other"):
            read_target(text, allowed)
    data = _honest()
    data["nodes"][0]["target"] = text
    with pytest.raises(ValueError, match="node 0: "):
        program_from_json(data)


def test_operators_of_other_packages_are_read_where_the_caller_names_them() -> None:
    text = "torch.ops.dovetail_attacks.twice.default"
    if not hasattr(torch.ops.dovetail_attacks, "twice"):
        torch.library.define("dovetail_attacks::twice", "(Tensor x) -> Tensor")
    with pytest.raises(ValueError, match=r'pass allow=\("dovetail_attacks::twice",\)'):
        read_target(text)
    for name in ("dovetail_attacks::twice", "dovetail_attacks::twice.default"):
        assert target_text(read_target(text, Allowed((name,)))) == text
    for name in ("aten::from_file", "prim::device", "twice", "dovetail_attacks::*", 3):
        with pytest.raises(BadOptionValue):
            Allowed((name,))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("target", "args"),
    [
        (int, ("9" * 100,)),
        (operator.mul, ("a", 1 << 30)),
        (operator.mul, ([1], 1 << 30)),
        (operator.add, ({"tuple": [1]}, {"tuple": [2]})),
        (operator.add, (1,)),
        (operator.add, (1, 2, 3)),
        (pow, (2, 3, 5)),
        (round, (1.5, -(10**9))),
        (operator.pow, (10**9, 10**9)),
        (math.floor, ({"dtype": "int64"},)),
        (operator.mul, (1 << 80, 1)),
    ],
)
def test_functions_of_numbers_take_numbers(target: Any, args: tuple[Any, ...]) -> None:
    data = _number_call(target, *(1 for _ in args))
    data["nodes"][0]["args"] = list(args)
    with pytest.raises(ValueError, match="node 0: "):
        program_from_json(data)


def test_numbers_that_grow_without_end_are_refused() -> None:
    n = Value("n", ScalarMeta(symbol("n")))
    values = [n]
    nodes = []
    for count in range(60):
        values.append(Value(f"v{count}", ScalarMeta(symbol(f"u{count}"))))
        nodes.append(Node(operator.mul, (values[-2], values[-2]), outputs=(values[-1],)))
    with pytest.raises(ValueError, match="bits"):
        program_from_json(_data(*nodes, inputs=(n,), outputs=(values[-1],)))
    data = _honest()
    data["values"][0]["shape"][0] = ["pow", 9, ["pow", 9, ["pow", 9, 9]]]
    with pytest.raises(ValueError, match="power"):
        program_from_json(data)
    size = symbol("s0")
    for _ in range(12):
        size = SizeExpr("mul", (size, size))
    with pytest.raises(ValueError, match="bits"):
        program_from_json(_data(inputs=(n,), outputs=(size,)))


@pytest.mark.parametrize("target", [operator.pow, operator.lshift, math.factorial, math.comb, math.perm])
def test_functions_that_may_not_end_are_bounded_when_they_run(target: Any) -> None:
    bounded = BOUNDED[target]
    few = (5,) if target is math.factorial else (5, 3)
    assert bounded(*few) == target(*few)
    with pytest.raises(RefusedOperands):
        bounded(*((10**12,) if target is math.factorial else (10**12, 10**11)))


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (("args", [{"value": "x"}, {"value": "x"}]), "takes 1"),
        (("args", []), "without its operand"),
        (("args", ["x"]), "not a valid Tensor"),
        (("kwargs", {"other": 1}), "no keyword operand 'other'"),
        (("kwargs", {"self": {"value": "x"}}), "no keyword operand 'self'"),
        (("unpack", True), "gives one result"),
        (("outputs", [None, "y"]), "several results"),
        (("args", [[{"value": "x"}] * 70_000]), "not a valid Tensor|operands"),
    ],
)
def test_calls_are_as_the_schema_says(change: tuple[str, Any], match: str) -> None:
    data = _honest()
    data["nodes"][0][change[0]] = change[1]
    with pytest.raises(ValueError, match=match):
        program_from_json(data)


@pytest.mark.parametrize(
    ("key", "value", "match"),
    [
        ("shape", [3, 2], "described"),
        ("shape", [1 << 40, 1 << 30], "described"),
        ("stride", [1, 2], "described with the strides"),
        ("dtype", "int64", "described"),
        ("storage", 0, "shares memory"),
        ("offset", 1, "has another offset in its memory"),
    ],
)
def test_descriptions_are_true(key: str, value: Any, match: str) -> None:
    data = _honest()
    data["values"][1][key] = value
    with pytest.raises(ValueError, match=match):
        program_from_json(data)


def test_a_result_is_on_a_device_of_its_operands() -> None:
    data = _honest()
    data["values"][1]["device"] = "meta"
    with pytest.raises(ValueError, match="node 0: y is described on the device meta"):
        program_from_json(data)
    x, y = _tensor("x", 2, 3), _tensor("y", 2, 3, storage=1)
    elsewhere = Value("y", dataclasses.replace(y.tensor, device=torch.device("meta")))
    to = {"dtype": torch.float32, "layout": torch.strided, "device": torch.device("meta")}
    node = Node(aten._to_copy.default, (x,), kwargs=tuple(to.items()), outputs=(elsewhere,))
    assert program_from_json(_data(node, inputs=(x,), outputs=(elsewhere,))).outputs[0] is not None
    node = Node(aten.zeros.default, ([2, 3],), outputs=(elsewhere,))
    with pytest.raises(ValueError, match="described on the device meta"):
        program_from_json(_data(node, inputs=(), outputs=(elsewhere,)))


def test_sizes_that_nothing_tells_are_refused() -> None:
    x, n, s0 = _tensor("x", symbol("s0"), 3), Value("n", ScalarMeta(symbol("n0"))), symbol("s0")
    y = Value("y", TensorMeta((s0, 3), (3, 1), 0, torch.float32, torch.device("cpu"), 1))
    for told, size in ((s0, "s0"), (SizeExpr("add", (s0, 1.5)), "s0")):
        node = Node(operator.mul, (told, 2), outputs=(n,))
        assert program_from_json(_data(node, inputs=(x,), outputs=(n,))).inputs[0].name == "x"
        with pytest.raises(ValueError, match=f"the size {size} is not known"):
            program_from_json(_data(node, inputs=(), outputs=(n,)))
    with pytest.raises(ValueError, match="the size s0 is not known"):
        program_from_json(_data(inputs=(), outputs=(s0,)))
    first = Node(operator.mul, (symbol("n0"), 2), outputs=(Value("m", ScalarMeta(symbol("m0"))),))
    made = Node(operator.mul, (s0, 2), outputs=(n,))
    assert len(program_from_json(_data(made, first, inputs=(x,), outputs=(n,))).nodes) == 2
    with pytest.raises(ValueError, match="node 0: the size n0 is not known"):
        program_from_json(_data(first, made, inputs=(x,), outputs=(n,)))
    relu = Node(aten.relu.default, (x,), outputs=(y,))
    assert program_from_json(_data(relu, inputs=(x,), outputs=(y,))).outputs[0] is not None


@pytest.mark.parametrize(
    ("plan", "match"),
    [
        (CallPlan((FromSlot(0),), (), (False,), flags=(GradientFlag(0, True, False),)), "cannot require gradients"),
        (CallPlan((FromSlot(0),), (), ()), "of each output"),
        (CallPlan((), (), (False, False)), "of each output"),
    ],
)
def test_plans_do_what_the_program_can(plan: CallPlan, match: str) -> None:
    x, y = _tensor("x", 2, dtype=torch.int64), _tensor("y", 2, storage=1, dtype=torch.int64)
    program = program_from_json(_data(Node(aten.neg.default, (x,), outputs=(y,)), inputs=(x,), outputs=(y,)))
    with pytest.raises(NotSerializable):
        plan_to_json(plan, program)
    honest = CallPlan((FromSlot(0),), (), (False,), flags=(GradientFlag(0, False, True),))
    data = plan_to_json(honest, program)
    assert plan_from_json(data, program) == honest
    data["plan"]["differentiable"] = list(plan.differentiable)
    data["plan"]["flags"][0]["requires_grad"] = bool(plan.flags)
    with pytest.raises(ValueError, match=match):
        plan_from_json(data, program)


@pytest.mark.parametrize("other", ["arg_x", "n", "weight_9"])
def test_weights_before_folding_are_those_of_the_file(tmp_path: Path, other: str) -> None:
    """What a file holds for `swap_weights` is read only then."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3)).eval()
    dovetail.freeze(model, (torch.ones(2, 4),)).save(tmp_path / "honest")
    file = open_container(tmp_path / "honest")
    members = {name: file.read(name) for name in file.names}
    dovetail.load(tmp_path / "honest").swap_weights(model.state_dict())
    for name in [name for name in members if name.endswith("unfolded.json")]:
        assert b'"_0_weight"' in members[name]
        members[name] = members[name].replace(b'"_0_weight"', f'"{other}"'.encode())
    write_container(tmp_path / "forged", members)
    frozen = dovetail.load(tmp_path / "forged")
    with pytest.raises(BadArtifact, match="is not a weight of the file"):
        frozen.swap_weights(model.state_dict())
    assert torch.equal(frozen(torch.ones(2, 4)), dovetail.load(tmp_path / "honest")(torch.ones(2, 4)))


def test_views_that_are_said_to_be_copies_are_refused() -> None:
    x, y = _tensor("x", 4), _tensor("y", 2, 2, storage=7)
    data = _data(Node(aten.view.default, (x, [2, 2]), outputs=(y,)), inputs=(x,), outputs=(y,))
    with pytest.raises(ValueError, match="shares memory"):
        program_from_json(data)


def test_writes_are_seen_through_functional_stages() -> None:
    x, y = _tensor("x", 4), _tensor("y", 4)
    data = _data(Node(aten.relu_.default, (x,), outputs=(y,)), inputs=(x,), outputs=(y,))
    with pytest.raises(ValueError, match="no operator writes an operand"):
        program_from_json(data)


def test_equal_numbers_of_other_types_share_no_primitive() -> None:
    for wrong in ((0.0,), (False,)):
        with pytest.raises(ValueError, match="not places"):
            prims.functional_form(aten.add_.Tensor, wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="not a place"):
        prims.view_scatter(aten.split.Tensor, True)
    assert prims.functional_form(aten.add_.Tensor, (0,)).python.endswith("(0,))")
    assert prims.view_scatter(aten.split.Tensor, 1).python.endswith(", 1)")


def test_every_checked_operator_can_be_named() -> None:
    names = {name.split(".")[1].rstrip("_") for name in listed_operators()}
    assert names >= {name for name in CHECKED_OPERATORS if not name.startswith("dovetail.")}
    for name in ("pack", "padded", "packed_layer"):
        assert f"dovetail.{name}" in CHECKED_OPERATORS
        assert isinstance(read_target(f"torch.ops.dovetail.{name}.default"), torch._ops.OpOverload)


def test_the_list_of_operators_is_what_its_rules_give() -> None:
    if not torch.__version__.startswith("2.13"):
        pytest.skip("the list is made with torch 2.13")
    script = Path(__file__).parents[2] / "docs" / "generate_operators.py"
    source = f"import runpy; m = runpy.run_path({str(script)!r}); assert m['text']() == m['PATH'].read_text()"
    subprocess.run([sys.executable, "-c", source], check=True)
