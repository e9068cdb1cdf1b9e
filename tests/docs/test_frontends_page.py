"""The examples on the page about front ends print what it says."""

from __future__ import annotations

import doctest
from pathlib import Path


def test_examples() -> None:
    page = Path(__file__).resolve().parent.parent.parent / "docs" / "frontends.md"
    results = doctest.testfile(str(page), module_relative=False)
    assert results.attempted > 3
    assert results.failed == 0
