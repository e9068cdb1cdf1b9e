"""The problems that were published with minimalloc, from `tests/data/minimalloc`."""

from __future__ import annotations

import csv
from pathlib import Path

from dovetail.memory.problem import Buffer, Problem

CAPACITY = 1_048_576
_FOLDER = Path(__file__).resolve().parent.parent / "data" / "minimalloc"
NAMES = tuple(sorted(path.name[0] for path in _FOLDER.glob("*.csv")))


def challenge(name: str) -> Problem:
    """The problem with this letter; all its sizes are whole KiB."""
    with (_FOLDER / f"{name}.{CAPACITY}.csv").open(encoding="utf-8") as file:
        rows = [{key: int(text) for key, text in row.items()} for row in csv.DictReader(file)]
    return Problem(tuple(Buffer(f"buffer {row['id']}", row["size"], row["lower"], row["upper"]) for row in rows), 1024)
