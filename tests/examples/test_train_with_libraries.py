"""Steps inside the objects of training libraries compile, and train bit by bit as in eager mode."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

_EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
_NEEDS = {"trainer": "accelerate", "accelerate": "accelerate", "lightning": "lightning", "fabric": "lightning"}


@pytest.fixture(scope="module")
def example() -> Iterator[ModuleType]:
    sys.path.insert(0, str(_EXAMPLES))
    try:
        yield importlib.import_module("train_with_libraries")
    finally:
        sys.path.remove(str(_EXAMPLES))


@pytest.mark.parametrize("recipe", _NEEDS)
@pytest.mark.filterwarnings("ignore")  # the libraries' own
def test_both_ways_learn_the_same(example: ModuleType, recipe: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip(_NEEDS[recipe])
    example.main([recipe, "--compare"])
    out = capsys.readouterr().out
    assert re.search("8 calls, 0 in eager mode; [12] captures", out)
    assert "every bit of the weights is the same" in out
