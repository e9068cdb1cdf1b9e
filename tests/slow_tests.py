"""Tests that take long: `make test` runs each of them every twelfth day, and `make sweep` all.

`slow_tests.txt` names them, without their cases. It is written from a report of a whole run:

    python -m pytest -n 2 --junit-xml report.xml
    python -m tests.slow_tests report.xml --seconds 2
"""

from __future__ import annotations

import argparse
import sys
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests import rotation

FILE = Path(__file__).with_suffix(".txt")
DAYS = 12
_ALWAYS = "tests/test_architecture.py::"  # what no change may break unseen


def names() -> tuple[str, ...]:
    """The tests, as pytest names them, without cases."""
    return tuple(FILE.read_text().split())


def of_this_run(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """The tests of a run: of slow ones, those whose number, made of the name, leaves the remainder of the seed."""
    if rotation.everything():
        return list(items)
    slow = frozenset(names())
    return [item for item in items if item.nodeid.partition("[")[0] not in slow or _is_due(item.nodeid)]


def _is_due(name: str) -> bool:
    return zlib.crc32(name.encode()) % DAYS == rotation.seed() % DAYS


def slow_in(report: Path, seconds: float) -> Iterable[str]:
    """The tests that took longer in one of their cases, by a report in JUnit's format."""
    found: dict[str, float] = {}
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        path = str(case.get("classname")).replace(".", "/")
        name = f"{path}.py::{str(case.get('name')).partition('[')[0]}"
        found[name] = max(found.get(name, 0.0), float(case.get("time", 0)))
    return sorted(name for name, took in found.items() if took >= seconds and not name.startswith(_ALWAYS))


def main(argv: list[str] | None = None) -> int:
    """Write the file anew; those that were not due in the run stay in it."""
    parser = argparse.ArgumentParser(prog="python -m tests.slow_tests", description=__doc__.split("\n")[0])
    parser.add_argument("report", type=Path)
    parser.add_argument("--seconds", type=float, default=2.0, help="from which time on a test is slow")
    options = parser.parse_args(argv)
    found = sorted({*slow_in(options.report, options.seconds), *(names() if FILE.exists() else ())})
    FILE.write_text("\n".join(found) + "\n")
    print(f"{len(found)} tests in {FILE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
