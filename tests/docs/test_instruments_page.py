"""What docs/instruments.md shows is what happens."""

from __future__ import annotations

import doctest
from pathlib import Path

_DOCS = Path(__file__).parents[2] / "docs"


def test_the_examples() -> None:
    page = _DOCS / "instruments.md"
    failed, tried = doctest.testfile(str(page), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert (failed, tried > 5) == (0, True)
