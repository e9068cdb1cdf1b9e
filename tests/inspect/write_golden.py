"""Write the texts that test_told.py compares with: python -m tests.inspect.write_golden, in the repository."""

from __future__ import annotations

import os
from pathlib import Path

from tests.inspect.told import TEXTS

FOLDER = Path(__file__).parents[1] / "data" / "golden"

if __name__ == "__main__":
    os.environ["COLUMNS"] = "100"
    for name, make in TEXTS.items():
        (FOLDER / f"{name}.txt").write_text(make() + "\n")
