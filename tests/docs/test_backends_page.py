"""The examples on the page about compilers of one's own print what it says."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

from dovetail.compat import functorch

_PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "backends.md"


@pytest.mark.usefixtures("alone")
def test_examples() -> None:
    results = doctest.testfile(str(_PAGE), module_relative=False)
    assert results.attempted > 15
    assert results.failed == 0


def test_the_page_has_every_name_of_functorch() -> None:
    text = _PAGE.read_text(encoding="utf-8")
    assert [name for name in functorch.__all__ if f"`{name}" not in text] == []
