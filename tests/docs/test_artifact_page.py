"""What docs/artifact.md shows runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from dovetail.testing.functional_programs import functional_program

_PAGE = Path(__file__).parents[2] / "docs" / "artifact.md"


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", _PAGE.read_text(encoding="utf-8"), re.DOTALL)
    before = {"weight": torch.randn(3, 4), "running_mean": torch.zeros(3)}
    names: dict[str, Any] = {"program": functional_program(1).program(), "weights": before}
    exec(compile(code, str(_PAGE), "exec"), names)
    assert names["program"].name == "random"
    assert names["weights"].keys() == before.keys()
    assert all(torch.equal(tensor, before[name]) for name, tensor in names["weights"].items())
