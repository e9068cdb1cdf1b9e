"""The gate itself: tests that hang are ended, slices of long lists rotate, work is counted."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests import rotation
from tests.counting import growth, steps_of

ROOT = Path(__file__).parents[1]

HANGING = """
import threading, time

def test_fine(): pass

def test_in_c(): sum(range(10**12))

def test_a_loop():
    while True: pass

def test_a_thread():
    thread = threading.Thread(target=waits_in_vain, daemon=True)
    thread.start()
    thread.join()

def waits_in_vain():
    time.sleep(1000)
"""


def test_tests_that_hang_are_ended_and_the_others_run(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(HANGING)
    command = [sys.executable, "-m", "pytest", "-n", "2", "-c", str(ROOT / "pyproject.toml"), f"--rootdir={tmp_path}"]
    command += ["--timeout=1", "--override-ini=faulthandler_timeout=3", "test_it.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    output = done.stdout + done.stderr
    assert "3 failed, 1 passed" in output, output
    assert "FAILED test_it.py::test_a_loop - Failed: Timeout (>1.0s) from pytest-timeout." in output
    assert "FAILED test_it.py::test_a_thread - Failed: Timeout (>1.0s) from pytest-timeout." in output
    assert "in waits_in_vain" in output
    assert "crashed while running 'test_it.py::test_in_c'" in output
    assert re.search(r"Timeout \(0:00:03\)!\n(.*\n)*?.* in test_in_c", output)


def test_every_seed_takes_another_slice_and_together_they_take_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(rotation.EVERYTHING, raising=False)
    taken = []
    for seed in range(7, 12):
        monkeypatch.setenv(rotation.VARIABLE, str(seed))
        taken += rotation.rotated(range(23), 5, shift=3)
    assert sorted(taken) == list(range(23))
    monkeypatch.setenv(rotation.EVERYTHING, "1")
    assert rotation.rotated(range(23), 5) == list(range(23))


def test_the_seed_is_fixed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(rotation.VARIABLE, "")
    seed = rotation.fix_seed()
    assert os.environ[rotation.VARIABLE] == str(seed)
    monkeypatch.setenv(rotation.VARIABLE, "17")
    assert rotation.fix_seed() == 17


@pytest.mark.parametrize("text", ["-1", "x", "1.5", "٣"])
def test_a_bad_seed_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(rotation.VARIABLE, text)
    with pytest.raises(ValueError, match=f"{rotation.VARIABLE} is {re.escape(repr(text))}"):
        rotation.fix_seed()


def test_the_seed_is_printed_above_and_below(pytestconfig: pytest.Config) -> None:
    lines = pytestconfig.hook.pytest_report_header(config=pytestconfig, start_path=ROOT)
    assert f"{rotation.VARIABLE}={rotation.seed()}" in str(lines)


def test_what_make_runs_exists() -> None:
    text = (ROOT / "Makefile").read_text()
    paths = re.findall(r"\btests/[\w/.]+", text)
    assert paths
    assert [path for path in paths if not (ROOT / path).exists()] == []
    modules = re.findall(r"-m (tests\.\w+)", text)
    assert [name for name in modules if not list(ROOT.glob(f"{name.replace('.', '/')}*"))] == []


# --- counting ---------------------------------------------------------------------------------------------------------


def _linear(items: list[int]) -> int:
    return len({item: item * 2 for item in items})


def _quadratic(items: list[int]) -> int:
    return sum(1 for one in items for other in items if one == other)


def _linear_and_a_little_quadratic(items: list[int]) -> None:
    for _ in items:
        for _ in range(100):
            pass
    for one in items:
        any(other is one for other in items)


@pytest.mark.parametrize(
    ("work", "least", "most"),
    [(_linear, 0.95, 1.05), (_quadratic, 1.95, 2.05), (_linear_and_a_little_quadratic, 1.3, 2)],
)
def test_growth_is_the_exponent(work: Callable[[list[int]], object], least: float, most: float) -> None:
    assert least < growth(lambda size: partial(work, list(range(size))), 200) < most


def test_steps_are_the_same_each_time_and_a_tracer_stays() -> None:
    before = sys.gettrace(), sys.getprofile()
    assert steps_of(partial(_linear, [1, 2, 3])) == steps_of(partial(_linear, [1, 2, 3])) > 3
    assert (sys.gettrace(), sys.getprofile()) == before
