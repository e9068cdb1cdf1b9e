"""The overlap benchmark asks all three, and says who is wrong."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from benchmarks.run import app


def test_tables_of_views_and_of_pairs(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["overlap", "--views", "8,20", "--out", str(tmp_path)], catch_exceptions=False)
    assert result.exit_code == 0
    rows = json.loads((tmp_path / "overlap.json").read_text())["rows"]
    assert all(row["dovetail"]["answer"] == row["truth"] for row in rows)
    assert all(row["numpy"]["answer"] in (row["truth"], None) for row in rows)
    assert [row["numpy"]["answer"] for row in rows if row["name"] == "NumPy's hard case"] == [None]
    table = (tmp_path / "overlap.md").read_text()
    assert "| interleaved columns | 20 | 0 |" in table
    assert "overlap (wrong)" in table
