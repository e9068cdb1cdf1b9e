"""The examples of the page on working in place run."""

from __future__ import annotations

import doctest
from pathlib import Path


def test_the_examples_run() -> None:
    page = Path(__file__).parents[2] / "docs" / "inplace.md"
    failed, tried = doctest.testfile(str(page), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert tried > 10
    assert failed == 0
