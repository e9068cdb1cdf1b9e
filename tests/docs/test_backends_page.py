"""The page about user-supplied compilers names every name of functorch."""

from __future__ import annotations

from pathlib import Path

from dovetail.compat import functorch

_PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "backends.md"


def test_the_page_has_every_name_of_functorch() -> None:
    text = _PAGE.read_text(encoding="utf-8")
    assert [name for name in functorch.__all__ if f"`{name}" not in text] == []
