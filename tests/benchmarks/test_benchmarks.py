"""The benchmarks' own arithmetic is right, and a failing backend is a row of the table."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from benchmarks.clock import now
from benchmarks.measure import answer_request, compile_for, measure_steps
from benchmarks.models import MODELS, build_workload, loss_of
from benchmarks.processes import ask_fresh_process
from benchmarks.report import write_report
from benchmarks.run import app
from benchmarks.summary import summarize_first_steps, summarize_steps
from tests.rotation import rotated

_SMALL = [name for name in MODELS if name != "gpt2-base"]


def _timed(wall_s: float, cpu_s: float) -> dict[str, float]:
    return {"wall_s": wall_s, "cpu_s": cpu_s}


def _first_step_rows() -> dict[str, object]:
    answers = {
        "dynamo": [_timed(1.0, 1.0), _timed(2.0, 2.0)],
        "aot_eager": [_timed(3.0, 5.0), _timed(4.0, 3.0)],
        "dovetail": [_timed(1.5, 2.0), {"error": "ValueError: why"}],
        "inductor": [{"error": "took longer than 9 s"}],
    }
    return {row.backend: row for row in summarize_first_steps("m", answers)}


def test_first_step_takes_minimums_and_own_shares() -> None:
    rows = _first_step_rows()
    dovetail = rows["dovetail"]
    assert (dovetail.wall_s, dovetail.cpu_s, dovetail.own_cpu_s) == (1.5, 2.0, 1.0)
    assert (rows["aot_eager"].wall_s, rows["aot_eager"].cpu_s, rows["aot_eager"].own_cpu_s) == (3.0, 3.0, 2.0)
    assert dovetail.cpu_ratios == {"dynamo": 2.0, "aot_eager": pytest.approx(2 / 3)}
    assert dovetail.own_ratios == {"aot_eager": 0.5}
    assert dovetail.error == "1 of 2 processes failed: ValueError: why"
    assert rows["dynamo"].own_cpu_s is None
    assert rows["inductor"].error == "took longer than 9 s"


def test_step_compares_with_eager_in_pairs() -> None:
    answers = {
        "eager": {"wall_ms": [10.0, 20.0, 40.0], "cpu_ms": [10.0], "peak_bytes": 100, "losses": [1.0]},
        "dovetail": {"wall_ms": [9.0, 22.0, 20.0], "cpu_ms": [5.0], "peak_bytes": 50, "losses": [1.0]},
        "inductor": {"error": "no compiler"},
    }
    eager, dovetail, inductor = summarize_steps("m", answers)
    assert (eager.wall_vs_eager, eager.paired_vs_eager, eager.peak_vs_eager) == (1.0, 1.0, 1.0)
    assert (dovetail.wall_vs_eager, dovetail.paired_vs_eager, dovetail.cpu_vs_eager) == (0.9, 0.9, 0.5)
    assert (dovetail.peak_vs_eager, dovetail.same_losses) == (0.5, True)
    assert inductor.error == "no compiler"


def test_report_writes_json_markdown_and_plot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    machine = {
        "date": "today", "processor": "p", "usable_cores": 2, "torch_threads": 2, "torch": "2", "device": "cpu",
        "load_average": [0.5, 0.5, 0.5],
    }  # fmt: skip
    write_report("first-step", list(_first_step_rows().values()), {"machine": machine}, tmp_path)
    assert "m, inductor: took longer than 9 s" in capsys.readouterr().out
    assert len(json.loads((tmp_path / "first-step.json").read_text())["rows"]) == 4
    assert "| m | dovetail | 1.50 | 2.00 | 1.00 | 0.667 |" in (tmp_path / "first-step.md").read_text()
    assert (tmp_path / "first-step.png").read_bytes().startswith(b"\x89PNG")


def test_steps_of_several_backends_in_turn_and_one_that_fails() -> None:
    answers = measure_steps("small-gpt", ["eager", "no_such_backend", "aot_eager"], "cpu", rounds=2, steps_per_round=1)
    assert "no_such_backend" in answers["no_such_backend"]["error"]
    assert answers["eager"]["losses"] == answers["aot_eager"]["losses"]
    assert [len(answers[name]["wall_ms"]) for name in ("eager", "aot_eager")] == [2, 2]
    assert min(answers[name]["peak_bytes"] for name in ("eager", "aot_eager")) > 0


@pytest.mark.parametrize("backend", rotated(["aot_eager", "dovetail"], 2))
def test_first_step_in_a_fresh_process(backend: str) -> None:
    """Nor does a backend import much in the part that is timed."""
    arguments = {"model": "small-gpt", "backend": backend, "device": "cpu"}
    answer = ask_fresh_process("first-step", arguments, threads=1, timeout_s=300)
    assert answer["late_imports"] < 20
    assert answer["wall_s"] > answer["forward_wall_s"] > 0
    workload = build_workload("small-gpt")
    assert answer["loss"] == pytest.approx(loss_of(workload.model(**workload.inputs)).item(), abs=0.1)


def test_failures_of_a_process_are_answers() -> None:
    arguments = {"model": "no-such-model", "backend": "eager", "device": "cpu"}
    assert answer_request({"kind": "first-step", "arguments": arguments})["error"].startswith("KeyError")
    assert ask_fresh_process("first-step", arguments, threads=1, timeout_s=0.01)["error"].startswith("took longer")


@pytest.mark.parametrize("name", rotated(_SMALL, 3))
def test_models_give_a_loss_and_are_the_same_for_the_same_seed(name: str) -> None:
    first, second = build_workload(name), build_workload(name)
    losses = [loss_of(workload.model.eval()(**workload.inputs)) for workload in (first, second)]
    losses[0].backward()
    assert losses[0].shape == ()
    assert math.isfinite(losses[0].item())
    assert losses[0].item() == losses[1].item()
    assert all(parameter.grad is not None for parameter in first.model.parameters())


def test_eager_runs_the_model_itself() -> None:
    model = build_workload("small-gpt").model
    assert compile_for("eager", model) is model


def test_processor_time_counts_children_that_run_and_that_have_ended() -> None:
    burn = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\n"
    before = now()
    with subprocess.Popen([sys.executable, "-c", burn + "input()"], stdin=-1, stdout=-1, text=True) as child:
        assert child.stdout is not None
        child.stdout.readline()
        while_running = now() - before
        child.communicate("\n")
    after_end = now() - before
    assert while_running.cpu_s > 0.25
    assert after_end.cpu_s > 0.25


def test_an_unknown_name_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["first-step", "--models", "nope", "--out", str(tmp_path)])
    assert result.exit_code == 2
    assert "small-gpt" in result.output


def test_a_backend_that_kills_the_process_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fake_process(kind: str, arguments: dict[str, Any], **_: object) -> dict[str, Any]:
        if "dovetail" in arguments["backends"]:
            return {"error": f"{kind} died"}
        timed = {"wall_ms": [1.0], "cpu_ms": [1.0], "peak_bytes": 1, "losses": []}
        return dict.fromkeys(arguments["backends"], timed)

    monkeypatch.setattr("benchmarks.run.ask_fresh_process", fake_process)
    arguments = ["step", "--models", "small-gpt", "--backends", "eager,dovetail,inductor", "--out", str(tmp_path)]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    rows = {row["backend"]: row for row in json.loads((tmp_path / "step.json").read_text())["rows"]}
    assert rows["dovetail"]["error"] == "step died"
    assert (rows["eager"]["wall_ms"], rows["inductor"]["wall_ms"]) == (1.0, 1.0)
