"""Sizes that a file may not name: those that are no numbers, and those that are not whole."""

from __future__ import annotations

from typing import Any

import pytest

from dovetail.artifact.source_names import checked_size
from dovetail.ir.sizes import from_json, is_whole


@pytest.mark.parametrize(
    "data",
    [
        ["pow", 0, -1],
        ["floordiv", 4, 0],
        ["mod", 4, ["add", 1, -1]],
        ["sqrt", -1],
        ["int", ["truediv", 1e308, 1e-308]],
        ["add", ["symbol", "s0"], ["floordiv", 1, 0]],
        ["where", ["symbol", "s0"], 1, ["truediv", 1, 0]],
    ],
    ids=str,
)
def test_no_number(data: Any) -> None:
    with pytest.raises(ValueError, match="is not a number"):
        checked_size(data)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (3, True),
        (True, False),
        (3.0, False),
        (["float", 1], False),
        (["truediv", ["symbol", "s0"], 2], False),
        (["add", ["symbol", "s0"], 0.5], False),
        (["pow", ["symbol", "s0"], -1], False),
        (["eq", ["symbol", "s0"], 2], False),
        (["floor", ["mul", ["symbol", "s0"], 0.5]], True),
        (["pow", ["symbol", "s0"], 2], True),
        (["where", ["eq", ["symbol", "s0"], 2], 1, ["symbol", "s0"]], True),
        (["floordiv", ["add", ["symbol", "s0"], 1], 2], True),
    ],
    ids=str,
)
def test_whole(data: Any, expected: bool) -> None:
    assert is_whole(from_json(data)) is expected
