"""Slow tests: every one is run in one of some runs, one after the other, and each name is that of a test."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import rotation, slow_tests

ROOT = Path(__file__).parents[1]
REPORT = """<testsuites><testsuite>
<testcase classname="tests.one.test_a" name="test_slow[1]" time="1.5"/>
<testcase classname="tests.one.test_a" name="test_slow[2]" time="4.5"/>
<testcase classname="tests.test_b" name="test_fast" time="0.5"/>
</testsuite></testsuites>"""


@pytest.fixture
def slices(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """As in `make test`, whatever this run takes."""
    monkeypatch.delenv(rotation.EVERYTHING, raising=False)
    return monkeypatch


def test_a_report_tells_which_are_slow(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(REPORT)
    assert list(slow_tests.slow_in(report, 3)) == ["tests/one/test_a.py::test_slow"]


def test_each_is_in_one_of_so_many_runs(slices: pytest.MonkeyPatch) -> None:
    slices.setattr(slow_tests, "names", lambda: ("test_a.py::test_slow",))
    items: list[Any] = [SimpleNamespace(nodeid=f"test_a.py::test_slow[{n}]") for n in range(60)]
    fast = SimpleNamespace(nodeid="test_a.py::test_fast")
    runs = []
    for seed in range(10, 10 + slow_tests.DAYS):
        slices.setenv(rotation.VARIABLE, str(seed))
        runs.append([item.nodeid for item in slow_tests.of_this_run([*items, fast]) if item is not fast])
    assert sorted(name for run in runs for name in run) == sorted(item.nodeid for item in items)
    assert min(map(len, runs)) > 2
    slices.setenv(rotation.EVERYTHING, "1")
    assert slow_tests.of_this_run([*items, fast]) == [*items, fast]


def test_the_rules_of_the_architecture_run_every_day() -> None:
    assert not any(name.startswith("tests/test_architecture.py") for name in slow_tests.names())


def test_each_name_is_that_of_a_test() -> None:
    for name in slow_tests.names():
        path, _, function = name.partition("::")
        assert re.search(rf"def {function}\(", (ROOT / path).read_text()), name
