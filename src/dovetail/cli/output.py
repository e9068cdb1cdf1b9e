"""What every command shares: the switch for JSON, and how things are printed."""

from __future__ import annotations

import importlib.metadata
import json
import sys
from pathlib import Path
from typing import Annotated

import typer

Dumped = Annotated[Path, typer.Argument(metavar="DUMP", help="A folder that DOVETAIL_DUMP wrote, or a file in it.")]
DumpFolder = Annotated[
    Path,
    typer.Argument(metavar="DUMP", help="A folder that DOVETAIL_DUMP wrote, or the folder of one compilation in it."),
]
Tolerance = Annotated[
    float | None,
    typer.Option("--rtol", min=0.0, help="Tolerance, relative to the largest element. Default: bitwise equality."),
]
Allow = Annotated[
    list[str] | None,
    typer.Option(
        "--allow", metavar="SPACE::NAME", help="An operator of another package that programs can call; repeatable."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print only JSON, for other programs to read.")]


def print_json(facts: object) -> None:
    """Write an object to standard output as JSON; what JSON does not know becomes text."""
    sys.stdout.write(json.dumps(facts, indent=2, default=str) + "\n")


def installed_version() -> str:
    """Of the package that is installed."""
    return importlib.metadata.version("dovetail")
