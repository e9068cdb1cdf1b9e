"""Dropout that drops nothing, and dropout that only seems so."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

from dovetail.analysis.infer import MetaInference
from dovetail.ir.sizes import symbol
from dovetail.passes import DropoutReport, plan_remove_dropout, remove_dropout
from dovetail.passes.remove_dropout import remove_dropout as remove_program
from dovetail.torch_compat.fakes import new_fake_mode
from tests.passes.programs import Builder

aten = torch.ops.aten

GIVE_BACK = [
    aten.dropout.default,
    aten.feature_dropout.default,
    aten.alpha_dropout.default,
    aten.feature_alpha_dropout.default,
]


def _graph(target: Any, *args: Any, after: str = "read", first: Any = aten.sin.default) -> fx.GraphModule:
    """sin(x), dropout, and what is made of that."""
    graph = fx.Graph()
    x = graph.placeholder("x")
    made = x if first is None else graph.call_function(first, (x,))
    dropped = graph.call_function(target, (made, *args))
    is_pair = target is aten.native_dropout.default
    result = graph.call_function(operator.getitem, (dropped, 0)) if is_pair else dropped
    outputs: dict[str, Any] = {
        "read": lambda: (graph.call_function(aten.exp.default, (result,)),),
        "returned": lambda: (result,),
        "view returned": lambda: (graph.call_function(aten.t.default, (result,)),),
        "both returned": lambda: (result, made),
        "mask": lambda: (graph.call_function(operator.getitem, (dropped, 1)),),
        "written": lambda: (graph.call_function(aten.add_.Tensor, (result, 1)), made),
    }
    graph.output(outputs[after]())
    return fx.GraphModule(nn.Module(), graph)


def _targets(gm: fx.GraphModule) -> list[Any]:
    return [node.target for node in gm.graph.nodes if node.op == "call_function"]


def _shared(items: tuple[Tensor, ...]) -> list[list[bool]]:
    """Which of the tensors share memory."""
    return [[a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr() for b in items] for a in items]


def _check(gm: fx.GraphModule) -> fx.GraphModule:
    """The module without dropout; it gives the same numbers, memory and random numbers."""
    x = torch.randn(3, 4)
    made = remove_dropout(gm, x)
    first, second = x.clone(), x.clone()
    torch.manual_seed(0)
    expected = gm(first)
    after = torch.get_rng_state()
    torch.manual_seed(0)
    found = made(second)
    assert torch.equal(torch.get_rng_state(), after)
    assert all(torch.equal(a, b) and a.stride() == b.stride() for a, b in zip(expected, found, strict=True))
    assert _shared((first, *expected)) == _shared((second, *found))
    assert torch.equal(first, second)
    return made


@pytest.mark.parametrize("target", GIVE_BACK)
@pytest.mark.parametrize("args", [(0.5, False), (0.0, True), (0.0, False), (1, False)])
@pytest.mark.parametrize("after", ["read", "returned", "view returned", "both returned", "written"])
@pytest.mark.parametrize("first", [aten.sin.default, None])
def test_what_gives_back_its_operand(target: Any, args: Any, after: str, first: Any) -> None:
    gm = _graph(target, *args, after=after, first=first)
    stays = after == "both returned" or (after == "returned" and first is None)
    assert (target in _targets(_check(gm))) is stays
    report = plan_remove_dropout(gm, torch.randn(3, 4))
    name = gm.graph.find_nodes(op="call_function", target=target)[0].name
    assert report.removed == (() if stays else (name,))
    assert report.kept == (((name, "RETURNED"),) if stays else ())


@pytest.mark.parametrize("target", GIVE_BACK)
def test_what_drops_stays(target: Any) -> None:
    gm = _graph(target, 0.5, True)
    assert target in _targets(_check(gm))
    report = plan_remove_dropout(gm, torch.randn(3, 4))
    assert [reason for _, reason in report.kept] == ["TRAINS"]
    assert str(report).splitlines()[1].endswith(": TRAINS: it drops elements")


@pytest.mark.parametrize("after", ["read", "returned", "view returned", "both returned", "written"])
@pytest.mark.parametrize("first", [aten.sin.default, None])
def test_native_dropout_becomes_a_copy(after: str, first: Any) -> None:
    made = _check(_graph(aten.native_dropout.default, 0.5, False, after=after, first=first))
    assert aten.clone.default in _targets(made)
    assert aten.native_dropout.default not in _targets(made)


@pytest.mark.parametrize(
    ("args", "after", "reason"),
    [((0.5, True), "read", "TRAINS"), ((0.5, None), "read", "TRAINS"), ((0.0, True), "read", "DRAWS"),
     ((0.5, False), "mask", "MASK")],
)  # fmt: skip
def test_native_dropout_that_stays(args: Any, after: str, reason: str) -> None:
    gm = _graph(aten.native_dropout.default, *args, after=after)
    assert aten.native_dropout.default in _targets(_check(gm))
    assert [why for _, why in plan_remove_dropout(gm, torch.randn(3, 4)).kept] == [reason]


def test_one_after_the_other_and_a_view_of_a_copy() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    copied = graph.call_function(aten.native_dropout.default, (x, 0.1, False))
    first = graph.call_function(operator.getitem, (copied, 0))
    second = graph.call_function(aten.dropout.default, (first, 0.1, False))
    third = graph.call_function(aten.alpha_dropout.default, (second, 0.1, False))
    view = graph.call_function(aten.t.default, (third,))
    graph.output((graph.call_function(aten.add_.Tensor, (view, 1)), x))
    made = _check(fx.GraphModule(nn.Module(), graph))
    assert _targets(made) == [aten.clone.default, aten.t.default, aten.add_.Tensor]


def test_a_module_in_evaluation() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.AlphaDropout(0.1), nn.Linear(4, 4)).eval()
    x = torch.randn(3, 4)
    gm = torch.export.export(module, (x,)).module(check_guards=False)
    assert aten.dropout.default in _targets(gm)
    made = remove_dropout(gm, x)
    assert set(_targets(made)) == {aten.linear.default}
    assert torch.equal(made(x), module(x))
    same = remove_dropout(made, x)
    assert str(same.graph) == str(made.graph)


def test_symbolic_sizes() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).eval()
    sizes = ({0: torch.export.Dim("n")},)
    gm = torch.export.export(module, (torch.randn(3, 4),), dynamic_shapes=sizes).module(check_guards=False)
    made = remove_dropout(gm)
    assert aten.dropout.default not in _targets(made)
    for rows in (1, 7):
        x = torch.randn(rows, 4)
        assert torch.equal(made(x), module(x))


def _removed(*args: Any) -> tuple[bool, DropoutReport]:
    b = Builder("x")
    (x,) = b.inputs
    made = b.call("made", aten.dropout.default, x, *args, view_of=x)
    program = b.program(b.call("read", aten.sin.default, made))
    after, report = remove_program(program, (), MetaInference(new_fake_mode(), {}))
    return after is not program, report


def test_on_programs() -> None:
    assert _removed(0.5, False) == (True, DropoutReport(("made",), ()))
    assert _removed(2.0, False) == (False, DropoutReport((), (("made", "BAD-PROBABILITY"),)))
    assert _removed(float("nan"), False) == (False, DropoutReport((), (("made", "BAD-PROBABILITY"),)))
    assert _removed(symbol("p"), False) == (False, DropoutReport((), (("made", "UNKNOWN"),)))
    assert str(_removed(0.5, False)[1]) == "removed 1 dropouts that have no effect"
