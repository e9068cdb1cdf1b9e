"""The search for wrong in-place programs goes on where it stopped, and writes what fails as files that run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests import inplace_sweep
from tests.harness import inplace_agreement
from tests.searching import ON_PATH


def test_a_search_goes_on_where_it_stopped(tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    arguments = ["--state", str(state), "--shard", "1/3", "--failures", str(tmp_path / "failures")]
    assert inplace_sweep.main([*arguments, "--programs", "4"]) == 0
    assert inplace_sweep.main([*arguments, "--programs", "6"]) == 0
    found = json.loads(state.read_text())
    assert (found["tried"], found["next"]) == (6, 1001 + 3 * 6)


def test_a_failure_is_written_small_and_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inplace_agreement, "_refusal", lambda *args: "for no reason")
    state = inplace_sweep.State(7)
    inplace_sweep.search(state, 1, 60, 1, tmp_path, lambda now: None)
    assert state.failures["in_place_7"].startswith("Disagreement: ")
    command = [sys.executable, tmp_path / "in_place_7.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=ON_PATH)
    assert done.returncode == 1
    assert "it works in place now" in done.stderr
