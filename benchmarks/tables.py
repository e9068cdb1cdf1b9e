"""A report of several tables: on the terminal, as markdown, and as JSON with every row."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

_WIDTH_IN_A_FILE = 160
Rows = list[list[str]]


def write_tables(
    name: str,
    tables: Mapping[str, tuple[list[str], Rows]],
    record: Mapping[str, Any],
    machine: Mapping[str, Any],
    out: Path,
) -> None:
    """Print the tables, and write `name.json` and `name.md` into `out`, a folder that is made if need be.

    tables: head and rows by title. record: what the JSON file holds beside the machine.
    """
    out.mkdir(parents=True, exist_ok=True)
    data = {"kind": name, "machine": machine, **record}
    (out / f"{name}.json").write_text(json.dumps(data, indent=1) + "\n")
    lines = [f"# {name}", "", f"{machine['date']}; {machine['processor']}; torch {machine['torch']}."]
    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDTH_IN_A_FILE)
    for title, (head, rows) in tables.items():
        lines += ["", f"## {title}", "", _line(head), _line(["---"] * len(head)), *map(_line, rows)]
        table = Table(*head, title=title)
        for row in rows:
            table.add_row(*row)
        console.print(table)
    (out / f"{name}.md").write_text("\n".join(lines) + "\n")
    console.print(f"written: {out / name}.json, .md", markup=False, soft_wrap=True)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
