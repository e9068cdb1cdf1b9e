"""The benchmark of frozen models gives every backend its turns, and says what was left out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.freeze import ColdStart, FreezeSettings, Group, Measured, missing_reason
from benchmarks.freeze_artifact import (
    LIMIT_PRIVATE,
    ArtifactCost,
    measure_discarding,
    read_artifact,
    write_artifact,
)
from benchmarks.freeze_models import Case, cases_of
from benchmarks.freeze_report import cold_ratio, load_ratio, write_freeze_report
from benchmarks.processes import describe_machine
from benchmarks.run import app
from tests.rotation import rotated

_SETTINGS = {
    "--models": "tiny",
    "--threads": "1",
    "--sizes": "1x16,3x16",
    "--rounds": "2",
    "--turn-s": "0.01",
    "--megabytes": "0",
}


@pytest.mark.parametrize("passes", rotated(["bitwise", "fast"], 2))
def test_tables_of_latency_cold_start_and_a_file(passes: str, tmp_path: Path) -> None:
    settings = {**_SETTINGS, "--backends": f"dovetail {passes},dovetail loaded"}
    arguments = [text for option in settings.items() for text in option]
    result = CliRunner().invoke(app, ["freeze", *arguments, "--out", str(tmp_path)], catch_exceptions=False)
    assert result.exit_code == 0
    record = json.loads((tmp_path / "freeze.json").read_text())
    assert record["notes"] == []
    backends = ["eager", f"dovetail {passes}", "dovetail loaded"]
    assert [row["backend"] for row in record["cold"]] == backends
    assert all(row["error"] is None and row["cold_s"] > 0 for row in record["cold"])
    assert [(row["case"], row["backend"]) for row in record["latencies"]] == [(c, b) for c in "13" for b in backends]
    assert all(row["equal"] for row in record["latencies"] if row["backend"] in ("eager", "dovetail bitwise"))
    assert all(row["difference"] < 1e-5 and 0 < row["p50_ms"] <= row["p95_ms"] for row in record["latencies"])
    assert record["artifact"] is None
    assert "| tiny | 1 | 3 | dovetail loaded |" in (tmp_path / "freeze.md").read_text()


def test_fewer_bits_are_backends_that_say_why_they_cannot(tmp_path: Path) -> None:
    """The model is too small for them: a row with an error, not an end."""
    settings = {**_SETTINGS, "--sizes": "1x16", "--backends": "dovetail int8,dovetail bf16"}
    arguments = [text for option in settings.items() for text in option]
    result = CliRunner().invoke(app, ["freeze", *arguments, "--out", str(tmp_path)], catch_exceptions=False)
    assert result.exit_code == 0
    errors = {row["backend"]: row["error"] for row in json.loads((tmp_path / "freeze.json").read_text())["cold"]}
    assert errors.pop("eager") is None
    assert errors.keys() == {"dovetail int8", "dovetail bf16"}
    assert all("BadOptionValue" in error for error in errors.values())


def test_a_large_file_and_its_memory(tmp_path: Path) -> None:
    megabytes = 16
    written = write_artifact(str(tmp_path), megabytes)
    read = read_artifact(str(tmp_path))
    row = ArtifactCost(**written, **read, peak_share=1.0, kept_peak_share=2.0)
    assert row.equal
    assert row.file_bytes > 0.9 * row.model_bytes > 12 << 20
    assert row.mapped_private_share < LIMIT_PRIVATE
    assert measure_discarding(megabytes, discards=True)["freeze_s"] > 0
    report = tmp_path / "report"
    write_freeze_report(Measured(), row, describe_machine("cpu"), {}, report)
    assert "| peak, originals discarded | 1.00 x the model | 1.1 x |" in (report / "freeze.md").read_text()


def test_a_backend_that_fails_is_a_row(tmp_path: Path) -> None:
    settings = FreezeSettings(("eager", "dovetail loaded"), ((1, 1),), rounds=1, turn_s=0.0)
    found = Measured()
    request = {"model": "tiny", "cases": [[1, None]], "backends": [], "folder": str(tmp_path), "threads": 1}
    (tmp_path / "0.dovetail").write_bytes(b"none of dovetail's")
    Group("tiny", 1, [Case(1)], settings, found).measure(request, ["dovetail loaded", "eager"], tmp_path)
    assert [(row.backend, row.error is None) for row in found.cold] == [("eager", True), ("dovetail loaded", False)]
    assert "DT-ARTIFACT-002" in str(found.cold[1].error)
    assert [row.backend for row in found.latencies] == ["eager"]


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert missing_reason("inductor") == "there is no C++ compiler"
    assert missing_reason("openvino") == "openvino is not installed (pip install dovetail[benchmarks])"
    assert missing_reason("dovetail fast") is None


def test_cases_and_ratios() -> None:
    assert [str(case) for case in cases_of("minilm", [(1, 16), (2, 8)])] == ["1x16", "2x8"]
    assert [str(case) for case in cases_of("resnet50", [(1, 16), (1, 8), (2, 8)])] == ["1", "2"]
    names = ("inductor", "dovetail fast", "dovetail loaded")
    rows = [
        ColdStart("tiny", 1, name, cold_s=s, prepare_s=s / 2) for name, s in zip(names, (40.0, 2.0, 0.5), strict=True)
    ]
    assert cold_ratio(rows, rows[1]) == 0.05
    assert load_ratio(rows, rows[2]) == 0.25
    assert load_ratio(rows, rows[1]) is None
    assert cold_ratio(rows[1:], rows[1]) is None
