"""Training steps and frozen modules in the instruments: replay, bisect, minify, explain and draw, from their dumps."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import dovetail
from dovetail import cli
from dovetail.inspect.bisect import bisect
from dovetail.inspect.draw import draw
from dovetail.inspect.dump_folder import read_dump
from dovetail.inspect.explain_dump import explain_dump
from dovetail.inspect.replay import EQUAL, RAN, replay
from dovetail.ir.program import Program
from dovetail.pipeline.passes import PASSES, Context, PassSpec

aten = torch.ops.aten


def _train(folder: Path, **options: Any) -> Path:
    """Two compiled steps with traced numbers, a question about one, a draw, a print and a scheduler."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Dropout(0.3), torch.nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)

    def step(x: torch.Tensor) -> tuple[torch.Tensor, float]:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(net(x), x[:, :2])
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0).item()
        if norm > 1e6:
            print("large", norm)
        optimizer.step()
        scheduler.step()
        return loss.detach(), norm

    run = dovetail.compile_step(step, dump=str(folder), **options)
    for _ in range(3):
        run(torch.randn(6, 4))
    return folder


def _plant(monkeypatch: pytest.MonkeyPatch, kind: str, name: str, swap: dict[Any, Any]) -> None:
    """Let a pass replace the first operator that is in `swap`."""

    def faulty(spec: PassSpec) -> PassSpec:
        def wrong(program: Program, context: Context) -> tuple[Program, Any]:
            made, report = spec.run(program, context)
            nodes = list(made.nodes)
            place = next((i for i, node in enumerate(nodes) if node.target in swap), None)
            if place is not None:
                nodes[place] = replace(nodes[place], target=swap[nodes[place].target])
            return replace(made, nodes=tuple(nodes)), report

        return replace(spec, run=wrong)

    specs = tuple(faulty(spec) if spec.name == name else spec for spec in PASSES[kind].specs)
    monkeypatch.setitem(PASSES, kind, replace(PASSES[kind], specs=specs))


TANH = {aten.tanh_backward.default: aten.sigmoid_backward.default}


def test_every_step_and_the_call_are_replayed(tmp_path: Path) -> None:
    rows = replay(_train(tmp_path, dump_calls=True))
    assert [row.verdict for row in rows] == [RAN, *[EQUAL] * (len(rows) - 1)]
    assert {row.inputs for row in rows} == {"recorded"}
    assert rows[-1].step == "joint call"


def test_random_inputs_serve_where_no_call_was_kept(tmp_path: Path) -> None:
    rows = replay(_train(tmp_path))
    assert [row.verdict for row in rows] == [RAN, *[EQUAL] * (len(rows) - 1)]
    assert {row.inputs for row in rows} == {"random"}


@pytest.mark.parametrize(("kind", "name"), [("joint", "no_ops"), ("step", "early_updates"), ("step", "reinplace")])
def test_bisect_names_the_users_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, name: str) -> None:
    _plant(monkeypatch, kind, name, TANH)
    (report,) = bisect(_train(tmp_path, dump_calls=True))
    assert report.step == name
    assert report.is_recorded
    assert report.culprit is not None
    assert "sigmoid_backward" in report.culprit.node
    file, line = report.culprit.origin.split()[0].rsplit(":", 1)
    assert Path(file).name == "test_steps.py"
    assert "net(x)" in Path(__file__).read_text(encoding="utf-8").splitlines()[int(line) - 1]


def test_bisect_sees_what_a_step_leaves_in_its_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wrong operator writes a parameter and nothing returns it."""
    swap = {aten.addcdiv.default: aten.addcmul.default, aten.addcdiv_.default: aten.addcmul_.default}
    _plant(monkeypatch, "step", "reinplace", swap)
    (report,) = bisect(_train(tmp_path, dump_calls=True))
    assert report.step == "reinplace"
    assert report.result.startswith("input ")
    assert report.culprit is not None
    assert "addcmul" in report.culprit.node


def test_minify_leaves_the_wrong_operator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _plant(monkeypatch, "step", "early_updates", TANH)
    dump, out = _train(tmp_path / "dump", dump_calls=True), tmp_path / "out"
    with contextlib.suppress(SystemExit):  # nothing is wrong in a fresh process
        cli.main(["minify", str(dump), "--out", str(out), "--json"])
    told = json.loads(capsys.readouterr().out)
    assert told["inputs_from"] == "recorded"
    assert told["nodes"] < 10 < told["nodes_before"]
    (wrong,) = [n for n in json.loads((out / "program.json").read_text())["nodes"] if "tanh_backward" in n["target"]]
    origins = json.loads((out / "program.json").read_text())["origins"]
    assert Path(origins[wrong["origin"]][0]).name == "test_steps.py"


def test_explain_and_draw(tmp_path: Path) -> None:
    (explanation,) = explain_dump(_train(tmp_path))
    assert "training step" in str(explanation)
    (compilation,) = read_dump(tmp_path)
    program = compilation.steps[-1].program
    assert program is not None
    for kind in ("text", "svg", "dot"):
        assert program.inputs[0].name in draw(program, format=kind)


def _freeze(folder: Path) -> Path:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5), torch.nn.Tanh()).eval()
    frozen = dovetail.freeze(model, (torch.randn(2, 4),), dump=str(folder), dump_calls=True)
    frozen(torch.randn(2, 4))
    assert list(folder.rglob("forward.inputs.safetensors"))
    return folder


def _compile(folder: Path) -> Path:
    x = torch.randn(3, requires_grad=True)
    dovetail.compile(lambda x: (x.tanh() * 2).sum(), dump=str(folder), dump_calls=True)(x).backward()
    return folder


def _backend(folder: Path) -> Path:
    torch.compiler.reset()
    x = torch.randn(3, requires_grad=True)
    options = {"dump": str(folder), "dump_calls": True}
    torch.compile(lambda x: (x.tanh() * 2).sum(), backend="dovetail", options=options)(x).backward()
    return folder


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("make", [_compile, _backend, _train, _freeze])
def test_every_front_end_has_every_instrument(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    folder = make(tmp_path)
    assert not [row for row in replay(folder) if row.verdict not in (RAN, EQUAL)]
    assert not [report for report in bisect(folder) if report.differs]
    assert explain_dump(folder)
    for compilation in read_dump(folder):
        for step in compilation.steps:
            assert step.program is not None
            assert draw(step.program)
