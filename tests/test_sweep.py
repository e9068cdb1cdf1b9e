"""The search writes what fails as files that run, and goes on where it stopped."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import dovetail
from dovetail.testing.sanitizer import AliasSanitizer
from tests import sweep
from tests.rotation import rotated
from tests.searching import ON_PATH


def test_a_search_goes_on_where_it_stopped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = tmp_path / "state.json"
    arguments = ["--kind", "plain", "--minutes", "0.01", "--state", str(state), "--shard", "1/3"]
    arguments += ["--failures", str(tmp_path / "failures")]
    assert sweep.main(arguments) == 0
    first = json.loads(state.read_text())
    assert first["tried"] > 0
    assert first["next"] == 1001 + 3 * first["tried"]
    assert sweep.main(arguments) == 0
    second = json.loads(state.read_text())
    assert second["tried"] > first["tried"]
    assert "failures" in capsys.readouterr().out


def test_a_search_ends_when_enough_was_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dovetail, "compile", lambda function, **options: function)
    state = tmp_path / "state.json"
    arguments = ["--kind", "both", "--state", str(state), "--failures", str(tmp_path / "failures")]
    assert sweep.main([*arguments, "--programs", "6"]) == 0
    assert json.loads(state.read_text()) == {"next": 1003, "tried": 6, "refused": 0, "failures": {}, "kind": "both"}
    assert sweep.main([*arguments, "--programs", "10"]) == 0
    assert json.loads(state.read_text())["next"] == 1005


def test_a_search_can_sanitize(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[AliasSanitizer] = []

    def sanitizer(level: str) -> AliasSanitizer:
        made.append(AliasSanitizer(level))
        return made[-1]

    monkeypatch.setattr(sweep, "AliasSanitizer", sanitizer)
    arguments = ["--kind", "both", "--programs", "4", "--sanitize", "--failures", str(tmp_path / "failures")]
    assert sweep.main(arguments) == 0
    assert len(made) == 4
    assert all(one.programs for one in made)


@pytest.mark.parametrize(("kind", "label"), rotated([("plain", "7"), ("alias", "alias_7")], 2))
def test_a_failure_is_written_small_and_runs(
    kind: str, label: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dovetail, "compile", lambda function, **options: lambda *args: function(*args)[:-1])
    state = sweep.State(7, kind=kind)
    sweep.search(state, 1, sweep.Limits(60, programs=1), tmp_path, lambda now: None)
    (path,) = tmp_path.glob(f"seed_{label}.py")
    assert state.failures[label].startswith("AssertionError: ")
    assert "def program(" in path.read_text()
    patched = "import dovetail; dovetail.compile = lambda function: function; import runpy, sys; "
    patched += "runpy.run_path(sys.argv[1], run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", patched, path], capture_output=True, text=True, check=False, env=ON_PATH
    )
    assert done.returncode == 1
    assert "it agrees with eager now" in done.stderr
