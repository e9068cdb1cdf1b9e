"""`dovetail bisect`: which pass, and which node, changed a result."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from dovetail.cli.output import AsJson, Dumped, Tolerance, print_json
from dovetail.cli.progress import spinner
from dovetail.execute.executors.aten import AtenExecutor
from dovetail.execute.protocol import ExecutorList
from dovetail.inspect.bisect import bisect, report_to_json

_Code = Annotated[bool, typer.Option("--code/--no-code", help="Look at the generated code as well, as a last step.")]


def bisect_command(dump: Dumped, rtol: Tolerance = None, code: _Code = True, as_json: AsJson = False) -> None:
    """Find the first pass, and the first node, from which on results differ from what was recorded.

    DUMP is a folder that DOVETAIL_DUMP=folder wrote. The recorded program, run operator by operator, is what eager
    does; each later step must give the same. Set DOVETAIL_DUMP_CALLS=1 as well to have the inputs of the first call in
    the dump; without, inputs are random. A node is told with the user's line, and how far its result is from float64's.

    Exit status: 0 when all steps agree, 1 when a step differs, 2 for a folder that holds no dump.
    """
    executors = ExecutorList((AtenExecutor(),)) if code else None
    with spinner("bisect", quiet=as_json) as progress:
        reports = bisect(dump, rtol=rtol, executors=executors, progress=progress)
    if as_json:
        print_json([report_to_json(report) for report in reports])
    else:
        console = Console()
        for report in reports:
            style = "green" if report.step is None else "red"
            console.print(Text(str(report), style=style), soft_wrap=True)
        if not reports:
            console.print("the dump holds no program that can be run: see its .json files", highlight=False)
    raise typer.Exit(1 if any(report.step is not None for report in reports) else 0)
