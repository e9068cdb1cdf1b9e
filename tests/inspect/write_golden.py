"""Write the texts that test_explain.py compares with: python -m tests.inspect.write_golden, in the repository."""

from __future__ import annotations

from pathlib import Path

from tests.inspect import explained

FOLDER = Path(__file__).parents[1] / "data" / "golden"

if __name__ == "__main__":
    for make in (
        explained.explained_net,
        explained.explained_cut,
        explained.explained_write,
        explained.explained_copy,
    ):
        (FOLDER / f"{make.__name__}.txt").write_text(make().text(times=False) + "\n")
