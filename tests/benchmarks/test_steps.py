"""The benchmarks of whole training steps ask every way of running them, and say who agrees with eager."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from benchmarks import step_memory as memory
from benchmarks.estimates import measure_estimate
from benchmarks.measure import EAGER, answer_request
from benchmarks.run import app
from benchmarks.step_capture import summarize_capture
from benchmarks.step_logging import summarize_logging
from benchmarks.step_memory import NO_COMPILER, NO_JAX, ask_for_ways, measure_ways, summarize_ways
from benchmarks.training_steps import CHECKPOINT, DOVETAIL, FAST, HALF, HOOKS, INDUCTOR, JAX, LOWEST, make_training_step


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Requests are answered here: starting a process for each would take most of the time."""
    asked: list[dict[str, Any]] = []

    def answer(kind: str, arguments: dict[str, Any], **_: object) -> dict[str, Any]:
        asked.append({"kind": kind, **arguments})
        return answer_request({"kind": kind, "arguments": arguments})

    monkeypatch.setattr("benchmarks.step_memory.ask_fresh_process", answer)
    monkeypatch.setattr("benchmarks.step_commands.ask_fresh_process", answer)
    return asked


@pytest.mark.usefixtures("alone", "in_this_process")
def test_tables_of_memory_and_of_logging(tmp_path: Path) -> None:
    arguments = ["step-memory", "--models", "mlp-small", "--clipped", "mlp-small", "--ways", f"{HOOKS},{DOVETAIL}"]
    turns = ["--rounds", "2", "--steps-per-round", "1", "--logging-rounds", "3"]
    result = CliRunner().invoke(app, [*arguments, *turns, "--out", str(tmp_path)], catch_exceptions=False)
    assert result.exit_code == 0
    record = json.loads((tmp_path / "step-memory.json").read_text())
    rows = {(row["way"], row["clip"]): row for row in record["rows"]}
    assert set(rows) == {(EAGER, False), (HOOKS, False), (DOVETAIL, False), (EAGER, True), (DOVETAIL, True)}
    assert all(
        row["error"] is None and row["equal"] and row["peak_bytes"] > 0 and row["ms"] > 0 for row in rows.values()
    )
    assert rows[HOOKS, False]["peak_bytes"] < rows[EAGER, False]["peak_bytes"]
    assert rows[DOVETAIL, False]["peak_bytes"] <= rows[HOOKS, False]["peak_bytes"]
    assert rows[DOVETAIL, True]["peak_bytes"] <= rows[EAGER, True]["peak_bytes"]
    for way, clip in rows:
        predicted = rows[way, clip]["predicted_bytes"]
        assert predicted is None if way != DOVETAIL else predicted > 0
    assert [(row["way"], row["same"]) for row in record["logging"]] == [(EAGER, True), (DOVETAIL, True)]
    table = (tmp_path / "step-memory.md").read_text()
    assert "| mlp-small | yes | dovetail |" in table
    assert "printed in the step" in table


@pytest.mark.usefixtures("alone", "in_this_process")
def test_tables_of_captures_and_of_calls(tmp_path: Path) -> None:
    arguments = ["step-capture", "--models", "mlp-small", "--calls-of", "mlp-small", "--processes", "1"]
    arguments += ["--rounds", "5", "--threads", "1", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    record = json.loads((tmp_path / "step-capture.json").read_text())
    eager, compiled = record["captures"]
    assert (eager["way"], compiled["way"]) == (EAGER, DOVETAIL)
    assert eager["capture_s"] is None
    assert compiled["first_s"] + compiled["second_s"] > compiled["capture_s"] > 0
    assert compiled["nodes"] > 50
    assert set(compiled["stages"]) == {"record", "functionalize", "passes", "code", "rest"}
    assert all(compiled["stages"][name] > 0 for name in ("record", "functionalize", "passes", "code"))
    (call,) = record["calls"]
    assert call["call_ms"] > call["program_ms"] > 0
    assert 0 < call["least_us"] <= call["own_us"]
    assert 0 < call["share"] < 1
    assert "| mlp-small | 8 |" in (tmp_path / "step-capture.md").read_text()


@pytest.mark.usefixtures("alone")
def test_a_way_that_fails_is_a_row() -> None:
    answers = measure_ways("mlp-small", [EAGER, HOOKS], clip=True, rounds=2, steps_per_round=1)
    eager, hooks = summarize_ways("mlp-small", clip=True, answers=answers)
    assert (eager.equal, eager.peak_vs_eager, eager.paired) == (True, 1.0, 1.0)
    assert hooks.error is not None
    assert "clipping needs all gradients at once" in hooks.error


def test_ratios_are_taken_within_a_round() -> None:
    common = {"losses": [1.0], "digest": "a", "end_bytes": 0}
    answers = {
        EAGER: {**common, "wall_ms": [10.0, 20.0, 40.0], "peak_bytes": 100},
        DOVETAIL: {**common, "wall_ms": [9.0, 22.0, 20.0], "peak_bytes": 50},
        # Compared with the eager of its own process.
        INDUCTOR: {**common, "wall_ms": [2.0], "peak_bytes": 50, "digest": "b",
                   "eager": {**common, "wall_ms": [1.0], "peak_bytes": 200}},
    }  # fmt: skip
    _, dovetail, inductor = summarize_ways("m", clip=False, answers=answers)
    assert (dovetail.peak_vs_eager, dovetail.paired, dovetail.ms, dovetail.equal) == (0.5, 0.9, 20.0, True)
    assert (inductor.peak_vs_eager, inductor.paired, inductor.equal) == (0.25, 2.0, False)


def test_inductor_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "has_cpp_compiler", lambda: False)
    monkeypatch.setattr(memory, "ask_fresh_process", lambda *_, **__: {"error": "died"})
    turns = {"rounds": 1, "steps_per_round": 1, "threads": 1, "timeout_s": 1.0}
    answers = ask_for_ways("mlp", [EAGER, HOOKS, INDUCTOR], clip=True, **turns)
    assert answers == {EAGER: {"error": "died"}, INDUCTOR: {"error": NO_COMPILER}}


def test_jax_is_asked_where_there_is_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its peak is what it says, and its time is compared with eager's medians."""
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho \'{"temporary_bytes": 50, "wall_ms": [9, 9, 9, 2, 4]}\'\n')
    python.chmod(0o755)
    eager = {"losses": [1.0], "digest": "d", "wall_ms": [1.0, 1.0], "peak_bytes": 100, "end_bytes": 0}
    monkeypatch.setattr(memory, "ask_fresh_process", lambda *_, **__: {EAGER: eager})
    turns = {"rounds": 2, "steps_per_round": 1, "threads": 1, "timeout_s": 60.0}
    monkeypatch.delenv("JAX_PYTHON", raising=False)
    assert ask_for_ways("gpt2-4", [EAGER, JAX], clip=False, **turns)[JAX] == {"error": NO_JAX}
    monkeypatch.setenv("JAX_PYTHON", str(python))
    _, jax = summarize_ways("gpt2-4", False, ask_for_ways("gpt2-4", [EAGER, JAX], clip=False, **turns))
    assert (jax.peak_vs_eager, jax.ms, jax.paired, jax.equal) == (0.5, 3.0, 3.0, None)
    assert JAX not in ask_for_ways("mlp", [EAGER, JAX], clip=False, **turns)


def test_inductor_has_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(_: str, arguments: dict[str, Any], **__: object) -> dict[str, Any]:
        return {way: {"n": arguments["ways"]} for way in arguments["ways"]}

    monkeypatch.setattr(memory, "has_cpp_compiler", lambda: True)
    monkeypatch.setattr(memory, "ask_fresh_process", answer)
    turns = {"rounds": 1, "steps_per_round": 1, "threads": 1, "timeout_s": 1.0}
    answers = ask_for_ways("mlp", [EAGER, HOOKS, INDUCTOR], clip=False, **turns)
    assert answers[EAGER] == {"n": [EAGER, HOOKS]}
    assert answers[INDUCTOR] == {"n": [EAGER, INDUCTOR], "eager": {"n": [EAGER, INDUCTOR]}}


def test_the_least_capture_counts() -> None:
    answers: list[dict[str, Any]] = [
        {"first_s": 1.0, "second_s": 3.0},
        {"error": "died"},
        {"first_s": 1.0, "second_s": 2.0, "nodes": 7},
    ]
    row = summarize_capture("m", DOVETAIL, answers)
    assert (row.second_s, row.nodes, row.error) == (2.0, 7, None)
    assert summarize_capture("m", DOVETAIL, answers[1:2]).error == "died"


def test_lines_that_differ_are_seen() -> None:
    cost = {"step_us": 1.0, "loop_us": 1.0, "inside_us": 1.0}
    answers = {EAGER: {**cost, "lines": ["1"]}, DOVETAIL: {**cost, "lines": []}, HOOKS: {"error": "died"}}
    assert [(row.same, row.error) for row in summarize_logging(answers, EAGER)] == [
        (True, None),
        (False, None),
        (None, "died"),
    ]


@pytest.mark.usefixtures("alone")
def test_all_ways_take_the_same_steps() -> None:
    ways = (EAGER, HOOKS, CHECKPOINT, DOVETAIL, HALF, LOWEST, FAST)  # nothing is so wide that the last one cuts it
    steps = [make_training_step(way, "mlp-small") for way in ways]
    losses = [[step().item() for _ in range(4)] for step in steps]
    assert all(found == losses[0] for found in losses)
    assert losses[0][-1] < losses[0][0]
    assert len({step.digest() for step in steps}) == 1


def test_estimates_are_of_models_that_are_nowhere() -> None:
    result = CliRunner().invoke(app, ["estimates", "--models", "70T"])
    assert result.exit_code == 2
    assert "7B" in result.output
    cost = measure_estimate("small")
    assert cost.parameters == 115_008
    assert 0 < cost.floor_bytes <= cost.peak_bytes
    assert cost.seconds > 0


@pytest.mark.usefixtures("alone", "in_this_process")
def test_peaks_of_graphs_are_as_predicted(tmp_path: Path) -> None:
    arguments = ["graph-memory", "--models", "mlp-small", "--out", str(tmp_path)]
    assert CliRunner().invoke(app, arguments, catch_exceptions=False).exit_code == 0
    rows = json.loads((tmp_path / "graph-memory.json").read_text())["rows"]
    assert len(rows) == 8
    assert all(row["equal"] and row["predicted_bytes"] == row["peak_bytes"] <= row["eager_bytes"] for row in rows)
