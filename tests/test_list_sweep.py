"""Whole lists are run in shards, go on where they stopped, and note what fails or ends the process."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from tests import rotation
from tests.list_sweep import LISTS

ROOT = Path(__file__).parents[1]

CASES = """
import os
import pytest

EVERY = os.environ["DOVETAIL_TEST_EVERYTHING"]

@pytest.mark.parametrize("number", range(6))
def test_case(number):
    assert EVERY == "1"
    assert number != 3, "three"
    if number == 4 and not os.path.exists("ended"):
        open("ended", "w").close()
        os._exit(9)
"""


def _run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.list_sweep", *arguments, "test_it.py"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_a_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(CASES)
    state = tmp_path / "state.json"
    stopped = _run(tmp_path, "--shard", "0/2", "--minutes", "0", "--state", str(state))
    assert "1 cases done, 2 left, 0 failures" in stopped.stdout, stopped
    assert stopped.returncode == 0
    ended = _run(tmp_path, "--shard", "0/2", "--state", str(state))
    assert ended.returncode == 9
    assert json.loads(state.read_text())["running"] == "test_it.py::test_case[4]"
    rest = _run(tmp_path, "--shard", "0/2", "--state", str(state))
    assert "3 cases done, 0 left, 1 failures\ntest_it.py::test_case[4]: ended the process" in rest.stdout, rest
    assert rest.returncode == 1
    other = _run(tmp_path, "--shard", "1/2", "--state", str(tmp_path / "other.json"))
    assert "3 cases done, 0 left, 1 failures\ntest_it.py::test_case[3]: " in other.stdout, other


def test_every_list_that_rotates_is_run() -> None:
    calls = re.compile(r"rotated\(|@cases_of\(.*\bof=")
    users = [path for path in (ROOT / "tests").rglob("*.py") if calls.search(path.read_text())]
    known = {*(ROOT / path for path in LISTS), Path(rotation.__file__), Path(__file__), ROOT / "tests/test_gate.py"}
    known.add(ROOT / "tests/semantics/check.py")  # which rotates for those that call it
    assert sorted(set(users) - known) == []
