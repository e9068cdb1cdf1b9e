"""`dovetail explain`: what a compilation decided, from its dump."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from dovetail.cli.output import AsJson, DumpFolder
from dovetail.errors import ReportNotWritten
from dovetail.inspect.explain_dump import explain_dump
from dovetail.inspect.explanation import Explanation


def explain_command(
    dump: DumpFolder,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the report as a page.")] = None,
    trace: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a trace for Perfetto.")] = None,
    as_json: AsJson = False,
) -> None:
    """Say what was decided: steps, predicted peak, what is saved, recomputed, in place and copied, and why.

    Exit status: 0, or 2 for a folder that is no dump and a file that cannot be written.
    """
    found = explain_dump(dump)
    for path in (html, trace):
        if path is not None:
            _check_one(found, path)
    if html is not None:
        found[0].html(html)
    if trace is not None:
        found[0].trace(trace)
    if as_json:
        sys.stdout.write("[" + ",\n".join(explanation.to_json() for explanation in found) + "]\n")
    elif html is None and trace is None:
        sys.stdout.write("\n\n".join(map(str, found)) + "\n")


def _check_one(found: list[Explanation], path: Path) -> None:
    """A file has room for one explanation."""
    if len(found) > 1:
        names = ", ".join(explanation.name for explanation in found)
        raise ReportNotWritten(path=path, reason=f"the dump has {len(found)} compilations ({names}); name one folder")
