"""The search for wrong frozen modules goes on where it stopped, and writes what fails as files that run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import freeze_agreement, freeze_sweep

pytestmark = pytest.mark.filterwarnings("ignore")


def test_a_search_goes_on_where_it_stopped(tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    arguments = ["--state", str(state), "--shard", "1/3", "--failures", str(tmp_path / "failures")]
    assert freeze_sweep.main([*arguments, "--programs", "3"]) == 0
    assert freeze_sweep.main([*arguments, "--programs", "5"]) == 0
    found = json.loads(state.read_text())
    assert (found["tried"], found["next"]) == (5, 1001 + 3 * 5)


def test_a_failure_is_written_small_and_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses_sums(program: freeze_sweep.FreezeProgram) -> None:
        if any(operation == "add" for method in program.methods.values() for operation, _ in method.steps):
            raise freeze_agreement.Differs("call 3: no sum is allowed")

    monkeypatch.setattr(freeze_sweep, "check_program", refuses_sums)
    state = freeze_sweep.State(0)
    freeze_sweep.search(state, 1, 60, 30, tmp_path, lambda now: None)
    assert state.failures
    assert set(state.failures.values()) == {"Differs: call N: no sum is allowed"}
    path = next(tmp_path.glob("freeze_*.py"))
    assert path.read_text().count("('add'") == 1
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", f"exec(open({str(path)!r}).read())"], check=True, env=environment)
