"""`dovetail bisect`: which pass, and which node, changed a result."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from dovetail.cli.named_object import load_named
from dovetail.cli.output import Allow, AsJson, DumpFolder, Tolerance, print_json
from dovetail.cli.progress import spinner
from dovetail.errors import BadArtifact, BadOptionValue
from dovetail.execute.protocol import Executor
from dovetail.inspect.bisect import bisect, report_to_json

_Code = Annotated[bool, typer.Option("--code/--no-code", help="Also check the generated code, as the last step.")]
_Executors = Annotated[
    list[str] | None,
    typer.Option("--executor", metavar="FILE:NAME", help="An executor of yours that was used; repeatable, in order."),
]


def bisect_command(
    dump: DumpFolder,
    rtol: Tolerance = None,
    executor: _Executors = None,
    code: _Code = True,
    as_json: AsJson = False,
    allow: Allow = None,
) -> None:
    """Find the first pass and the first node whose results differ from the recorded ones.

    The recorded program, run operator by operator, is what eager
    does; each later step must give the same. Set DOVETAIL_DUMP_CALLS=1 as well to have the inputs of the first call in
    the dump; without, inputs are random. A node is told with the user's line, and how far its result is from float64's.

    A dump has programs, not the executors that ran them: `--executor executors.py:Mine` names a class, or a function
    without arguments, that gives one.

    Exit status: 0 when all steps agree, 1 when a step or a recorded call differs, 2 for wrong usage and a folder that
    holds no dump with programs to run.
    """
    if executor and not code:
        raise typer.BadParameter("--executor is checked in the generated code: leave out --no-code")
    executors = [_executor(text) for text in executor or ()] if code else None
    with spinner("bisect", quiet=as_json) as progress:
        reports = bisect(dump, rtol=rtol, executors=executors, progress=progress, allow=allow or ())
    if not reports:
        reason = "its programs could not be written, as its .json files say under `not_serializable`"
        raise BadArtifact(path=dump, expected="a dump", reason=reason, hint="replay names the reasons")
    if as_json:
        print_json([report_to_json(report) for report in reports])
    else:
        console = Console()
        for report in reports:
            style = "red" if report.differs else "green"
            console.print(Text(str(report), style=style), soft_wrap=True)
    raise typer.Exit(1 if any(report.differs for report in reports) else 0)


def _executor(text: str) -> Executor:
    """What `FILE:NAME` makes. Raises: BadOptionValue; what the file raises."""
    expected = "executors.py:Mine, a class with name, claim and call"
    make = load_named(text, "--executor", expected)
    made = make()
    if not isinstance(made, Executor):
        reason = f"it returns a {type(made).__name__}, which is not an executor"
        raise BadOptionValue(option="--executor", value=text, reason=reason, expected=expected)
    return made
