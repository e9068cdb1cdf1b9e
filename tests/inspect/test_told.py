"""What the instruments say, word by word."""

from __future__ import annotations

import pytest

from tests.inspect.told import TEXTS
from tests.inspect.write_golden import FOLDER


@pytest.mark.parametrize("name", TEXTS)
def test_texts_are_as_they_were(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(FOLDER.parents[2])
    monkeypatch.setenv("COLUMNS", "100")
    expected = (FOLDER / f"{name}.txt").read_text()
    assert TEXTS[name]() + "\n" == expected, "if it should: python -m tests.inspect.write_golden, and look at the diff"


def test_every_golden_file_is_compared() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == set(TEXTS)
