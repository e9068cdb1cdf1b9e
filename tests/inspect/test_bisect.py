"""A pass that changes a result is named, and so is the node."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import dovetail
from dovetail import cli
from dovetail.inspect.bisect import bisect
from dovetail.ir.program import Node, Program
from dovetail.ir.text import Names, plain_call
from dovetail.pipeline.passes import PASSES, Context, PassSpec

aten = torch.ops.aten
ALL_PASSES = [spec.name for spec in (*PASSES["joint"].specs, *PASSES["forward"].specs)]


class _Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 4)
        self.register_buffer("calls", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        h = torch.nn.functional.dropout(self.first(x).tanh(), 0.3)
        return torch.log_softmax(self.second(h), 1).mul(x[:, :4]).sum() + self.calls.sum()


def _dump(folder: Path) -> Path:
    torch.manual_seed(0)
    net = dovetail.compile(_Net(), dump=str(folder), dump_calls=True)
    net(torch.randn(4, 8)).backward()
    return folder


def _with_fault(spec: PassSpec, swap: dict[Any, Any]) -> PassSpec:
    """The pass, and then the first operator that is in `swap` is replaced."""

    def wrong(program: Program, context: Context) -> tuple[Program, Any]:
        made, report = spec.run(program, context)
        nodes = list(made.nodes)
        place = next((i for i, node in enumerate(nodes) if node.target in swap), None)
        if place is not None:
            nodes[place] = replace(nodes[place], target=swap[nodes[place].target])
        return replace(made, nodes=tuple(nodes)), report

    return replace(spec, run=wrong)


def _plant(monkeypatch: pytest.MonkeyPatch, name: str, swap: dict[Any, Any]) -> None:
    for kind, passes in PASSES.items():
        wrong = tuple(_with_fault(spec, swap) if spec.name == name else spec for spec in passes.specs)
        monkeypatch.setitem(PASSES, kind, replace(passes, specs=wrong))


FAULTS: dict[str, tuple[dict[Any, Any], str]] = {
    "forward": ({aten.tanh.default: aten.sin.default, aten.tanh_.default: aten.sin_.default}, "tanh"),
    "backward": ({aten.tanh_backward.default: aten.sigmoid_backward.default}, "tanh_backward"),
}


@pytest.mark.parametrize("name", ALL_PASSES)
@pytest.mark.parametrize("where", list(FAULTS))
def test_a_wrong_rewrite_of_each_pass_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, where: str
) -> None:
    swap, value = FAULTS[where]
    _plant(monkeypatch, name, swap)
    (report,) = bisect(_dump(tmp_path))
    assert report.step is not None
    assert report.step.removesuffix(f"-{where}") == name
    assert report.culprit is not None
    assert report.culprit.value == value
    assert "sin" in report.culprit.node or "sigmoid_backward" in report.culprit.node
    assert report.culprit.origin.split(":")[0].endswith("test_bisect.py")
    assert report.culprit.error_before is not None
    assert report.culprit.error_after is not None
    assert report.culprit.error_before < 1e-4 < report.culprit.error_after
    assert report.runs <= math.log2(report.steps) + 10
    assert report.is_recorded


def test_nothing_is_found_where_nothing_is_wrong(tmp_path: Path) -> None:
    (report,) = bisect(_dump(tmp_path))
    assert report.step is None
    assert report.runs == 2
    assert "all 13 steps agree, on the inputs of the first call" in str(report)


def test_random_inputs_serve_where_no_call_was_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _plant(monkeypatch, "no_ops", FAULTS["forward"][0])
    dovetail.compile(_Net(), dump=str(tmp_path))(torch.randn(4, 8))
    (report,) = bisect(tmp_path)
    assert (report.step, report.is_recorded) == ("no_ops", False)
    assert "on random inputs" in str(report)


class _Sloppy:
    """An executor that is wrong about one operator."""

    name = "sloppy"

    def claim(self, node: Node) -> bool:
        return True

    def call(self, names: Names, node: Node) -> str:
        swap = FAULTS["forward"][0]
        return plain_call(names, replace(node, target=swap.get(node.target, node.target)))


def test_a_wrong_executor_is_the_last_step(tmp_path: Path) -> None:
    (report,) = bisect(_dump(tmp_path), executors=[_Sloppy()])
    assert report.step == "code"
    assert report.culprit is not None
    assert report.culprit.value == "tanh"


def test_a_tolerance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _plant(monkeypatch, "no_ops", {aten.log_softmax.int: aten.log_softmax.int, aten.tanh.default: aten.sin.default})
    folder = _dump(tmp_path)
    assert bisect(folder, rtol=1e-6)[0].step == "no_ops"
    assert bisect(folder, rtol=1e6)[0].step is None


def _edited(folder: Path, step: str, edit: Callable[[dict[str, Any]], None]) -> None:
    """Change the programs from a step on."""
    paths = sorted(folder.rglob("*.json"))
    first = next(i for i, path in enumerate(paths) if path.stem.endswith(step))
    for path in paths[first:]:
        facts = json.loads(path.read_text())
        edit(facts["program"])
        path.write_text(json.dumps(facts))


def test_a_step_that_fails(tmp_path: Path) -> None:
    def to_other_shape(program: dict[str, Any]) -> None:
        for node in program["nodes"]:
            if node["outputs"] == ["addmm_1"]:
                node["target"] = "torch.ops.aten.addmm.default"
                node["args"] = [node["args"][0], node["args"][1], node["args"][1]]

    folder = _dump(tmp_path)
    _edited(folder, "dead_code", to_other_shape)
    (report,) = bisect(folder)
    assert report.step == "dead_code"
    assert report.culprit is not None
    assert report.culprit.node.startswith("addmm_1 = ")
    assert "cannot be multiplied" in str(report)


def test_the_command_tells_and_exits_with_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _plant(monkeypatch, "no_ops", FAULTS["forward"][0])
    folder = _dump(tmp_path)
    assert _command("bisect", str(folder)) == 1
    told = capsys.readouterr().out
    assert "step no_ops differs from dead_code" in told
    assert "tanh = torch.ops.aten.sin.default(addmm)" in told
    assert _command("bisect", str(folder), "--json") == 1
    assert json.loads(capsys.readouterr().out)[0]["culprit"]["value"] == "tanh"


def _command(*arguments: str) -> int:
    """The exit status of a command; an error that it does not explain is raised."""
    with pytest.raises(SystemExit) as ended:
        cli.main(list(arguments))
    return int(ended.value.code or 0)


def test_a_call_that_something_else_ran_is_said(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = dovetail.compile(_Net(), dump=str(tmp_path), dump_calls=True, executors=[_Sloppy()])
    net(torch.randn(4, 8)).backward()
    (report,) = bisect(tmp_path)
    assert report.step is None
    assert report.differs
    assert "but the forward call gave another result: result 0 differs by up to" in str(report)
    (report,) = bisect(tmp_path, executors=[_Sloppy()])
    assert report.step == "code"
    assert report.culprit is not None
    assert report.culprit.executor == "sloppy: torch.ops.aten.sin_.default(addmm)"


_EXECUTOR_FILE = """
class Mine:
    name = "mine"
    def claim(self, node):
        return node.target.__name__ == "mul.Tensor"
    def call(self, names, node):
        return f"({names.text(node.args[0])} - {names.text(node.args[1])})"
def none(): return None
"""


def test_the_command_takes_executors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = _dump(tmp_path / "dump")
    file = tmp_path / "mine.py"
    file.write_text(_EXECUTOR_FILE)
    assert _command("bisect", str(folder), "--executor", f"{file}:Mine") == 1
    assert "run by    mine: (" in capsys.readouterr().out
    for text, reason in (
        (f"{file}:none", "it returns a NoneType, which is not an executor"),
        (f"{file}:Other", "the file has no function 'Other'"),
    ):
        assert _command("bisect", str(folder), "--executor", text) == 2
        assert reason in capsys.readouterr().err
