"""`dovetail minify`: make a failing program small, and write a script that shows the failure."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from dovetail.cli.output import Allow, AsJson, print_json
from dovetail.cli.progress import spinner
from dovetail.errors import BadCheck, BadOptionValue, DoesNotFail, OutputInTheWay
from dovetail.inspect.minify import Minified, minify
from dovetail.inspect.minify_files import ProgramToMinify, read_source
from dovetail.inspect.minify_isolated import Isolated
from dovetail.inspect.minify_oracles import BUILT_IN, Agrees, CheckFile, Compiles, NamedOracle, Passes
from dovetail.inspect.minify_script import Reproducer, write_reproducer
from dovetail.inspect.states import is_step

_DOES_NOT_FAIL = 1
_NOT_CONFIRMED = 3


_Path = Annotated[
    Path,
    typer.Argument(metavar="PROGRAM", exists=True, help="A program as JSON, a step of a dump, or a dump's folder."),
]
_Inputs = Annotated[
    Path | None,
    typer.Option(
        exists=True,
        dir_okay=False,
        help="Its inputs, written by save_call. Default: the recorded call, else random numbers.",
    ),
]
_Kind = Annotated[
    Literal["compiles", "agrees", "passes"],
    typer.Option(
        "--oracle",
        help="compiles: fails if compiling or running it raises. agrees: also if results differ. passes: results of "
        "the passes for its kind differ; always so for a training step.",
    ),
]
_Check = Annotated[
    str | None,
    typer.Option(
        "--check", metavar="FILE:FUNCTION", help="Your own check: function(gm, inputs) raises where gm fails."
    ),
]
_Tolerance = Annotated[float, typer.Option(min=0.0, help="For agrees: tolerance, relative to the largest element.")]
_Isolate = Annotated[
    bool, typer.Option("--isolate", help="Check each program in its own process, so that crashes and hangs are caught.")
]
_TimeLimit = Annotated[
    float,
    typer.Option(min=0.1, help="Seconds after which a program checked with --isolate, or repro.py, counts as hanging."),
]
_Limit = Annotated[int | None, typer.Option(min=2, help="Stop after this many checks and keep the best result so far.")]
_Out = Annotated[Path, typer.Option(help="A new folder for repro.py and its files; nothing is overwritten.")]
_State = Annotated[
    Path | None,
    typer.Option(dir_okay=False, help="Save every verdict in this file, so that an interrupted search can be resumed."),
]


def minify_command(  # noqa: PLR0913 (each is an option of the command)
    program: _Path,
    *,
    inputs: _Inputs = None,
    kind: _Kind = "agrees",
    check: _Check = None,
    tolerance: _Tolerance = 0.0,
    isolate: _Isolate = False,
    time_limit: _TimeLimit = 60.0,
    limit: _Limit = None,
    out: _Out = Path("minified"),
    state: _State = None,
    as_json: AsJson = False,
    allow: Allow = None,
) -> None:
    """Reduce a failing program to a few operators that fail in the same way, and write a script that shows it.

    Programs come from dumps: run yours with DOVETAIL_DUMP=dir. The search cuts off what comes before and after the
    fault, then leaves out nodes, outputs and inputs, and each time asks the check whether the rest still fails with the
    same error, or the same kind of difference. What is left runs on the tensors that really reached it. repro.py is run
    once in a fresh process, and is called confirmed only if it fails there.

    Exit status: 0 when the small program is written and confirmed; 1 when the program does not fail; 2 for wrong usage,
    and for a failure that comes and goes; 3 when repro.py does not fail in a fresh process.

    Examples: `dovetail minify dump/000-f` and `dovetail minify step.json --check check.py:fails --isolate`
    """
    if out.exists():
        raise OutputInTheWay(path=out)
    try:  # before the search, which takes long
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = f"it cannot be created: {error.strerror or error}"
        raise BadOptionValue(option="--out", value=str(out), reason=reason, expected="a new folder") from error
    source = read_source(program, inputs, allow=allow or ())
    oracle = _oracle("passes" if is_step(source.program) else kind, check, tolerance)
    asked = Isolated(oracle, time_limit) if isolate else oracle
    try:
        with spinner("minify", quiet=as_json) as show:
            found = minify(
                source.program,
                source.inputs,
                asked,
                limit=limit,
                state=state,
                progress=lambda step: show(f"{step.name}: {step.nodes} nodes left, {step.checks} checks"),
            )
    except DoesNotFail as error:
        if as_json:
            print_json({"program": source.program.name, "fails": False, "inputs_from": source.origin})
        else:
            Console(stderr=True).print(f"{error}\n  inputs    {source.origin}", soft_wrap=True, markup=False)
        raise typer.Exit(_DOES_NOT_FAIL) from None
    finally:
        if isinstance(asked, Isolated):
            asked.close()
    written = write_reproducer(out, found, oracle, time_limit)
    if as_json:
        print_json(_facts(source, found, written))
    else:
        _tell(found, written)
    raise typer.Exit(0 if written.is_confirmed else _NOT_CONFIRMED)


def _oracle(name: str, check: str | None, tolerance: float) -> NamedOracle:
    if check is not None:
        path, colon, function = check.rpartition(":")
        if not colon:
            raise BadCheck(check=check, reason="it does not name a function", known=" and ".join(BUILT_IN))
        return CheckFile(path, function)
    if name == "compiles":
        return Compiles()
    return Agrees(tolerance) if name == "agrees" else Passes(tolerance)


def _facts(source: ProgramToMinify, found: Minified, written: Reproducer) -> dict[str, object]:
    return {
        "program": found.program.name,
        "fails": True,
        "inputs_from": source.origin,
        "failure": found.failure.to_json(),
        "original_failure": found.original.to_json(),
        "nodes_before": found.steps[0].nodes,
        "nodes": len(found.program.nodes),
        "inputs": len(found.program.inputs),
        "outputs": len(found.program.outputs),
        "checks": found.asked,
        "answered_by_state": found.answered,
        "complete": found.is_complete,
        "steps": [{"name": s.name, "nodes": s.nodes, "outputs": s.outputs, "checks": s.checks} for s in found.steps],
        "script": str(written.script),
        "confirmed": written.is_confirmed,
        "ending": written.ending,
    }


def _tell(found: Minified, written: Reproducer) -> None:
    lines = [f"{step.name:<14} {step.nodes:>6} nodes  {step.checks:>5} checks" for step in found.steps]
    lines += ["", str(found), ""]
    if written.is_confirmed:
        lines.append(f"{written.script}: confirmed in a fresh process")
    else:
        lines.append(f"{written.script}: NOT CONFIRMED: in a fresh process it ended with {written.ending}")
    Console().print("\n".join(lines), soft_wrap=True, highlight=False, markup=False)
