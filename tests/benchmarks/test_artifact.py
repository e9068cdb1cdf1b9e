"""The benchmark of files keeps the same tensors in every way."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from benchmarks.run import app


def test_the_table_has_every_way(tmp_path: Path) -> None:
    arguments = ["artifact", "--megabytes", "8", "--out", str(tmp_path)]
    assert CliRunner().invoke(app, arguments, catch_exceptions=False).exit_code == 0
    rows = json.loads((tmp_path / "artifact.json").read_text())["rows"]
    assert len({row["way"] for row in rows}) == 5
    assert "| dovetail | 8 |" in (tmp_path / "artifact.md").read_text()
