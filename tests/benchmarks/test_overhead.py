"""The overhead benchmark asks every backend, and says which limit holds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.overhead import BARE, CallCost, limit_per_input_us, per_input_us
from benchmarks.run import app


@pytest.mark.usefixtures("alone")
def test_tables_of_calls_and_of_guards(tmp_path: Path) -> None:
    arguments = [
        "overhead",
        "--inputs",
        "1,3",
        "--views",
        "1,4",
        "--rounds",
        "1",
        "--calls",
        "2",
        "--out",
        str(tmp_path),
    ]
    chosen = ["--backends", "eager,dynamo,bare Function,dovetail,dovetail.compile"]
    result = CliRunner().invoke(app, [*arguments, *chosen, "--out", str(tmp_path)], catch_exceptions=False)
    assert result.exit_code == 0
    record = json.loads((tmp_path / "overhead.json").read_text())
    assert len(record["calls"]) == 5 * 2 * 5
    assert all(row["us"] > 0 and row["error"] is None for row in record["calls"])
    assert len(record["guards"]) == 5 * 2
    table = (tmp_path / "overhead.md").read_text()
    assert "| parameters of a module | 3 |" in table
    assert "| overlapping windows | 4 |" in table


@pytest.mark.usefixtures("alone")
def test_a_backend_without_time_is_a_row(tmp_path: Path) -> None:
    arguments = ["overhead", "--inputs", "1", "--views", "1", "--rounds", "1", "--calls", "1"]
    chosen = ["--backends", "eager,inductor", "--inductor-s", "0"]
    CliRunner().invoke(app, [*arguments, *chosen, "--out", str(tmp_path)], catch_exceptions=False)
    rows = json.loads((tmp_path / "overhead.json").read_text())["calls"]
    assert {row["error"] for row in rows if row["backend"] == "inductor"} == {"no time left to compile"}


def test_the_cost_of_one_more_input() -> None:
    rows = [CallCost("k", inputs, "dovetail", False, 1.0, added) for inputs, added in ((1, 5.0), (4, 9.0), (11, 7.0))]
    assert per_input_us(rows, "k", "dovetail") == pytest.approx(0.2)
    assert per_input_us(rows[:1], "k", "dovetail") is None


def test_what_one_more_input_may_cost() -> None:
    plain = [CallCost("k", inputs, BARE, False, us) for inputs, us in ((1, 5.0), (11, 10.0))]
    trained = [CallCost("k", inputs, BARE, True, us) for inputs, us in ((1, 5.0), (11, 10.0))]
    assert limit_per_input_us(plain, "k") == pytest.approx(0.3)
    assert limit_per_input_us(trained, "k") == pytest.approx(0.6)
    assert limit_per_input_us(trained[:1], "k") is None
