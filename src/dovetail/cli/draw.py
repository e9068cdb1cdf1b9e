"""`dovetail draw`: a picture of a dumped program."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from dovetail.cli.output import Allow, AsJson, Dumped, print_json
from dovetail.errors import BadArtifact, BadOptionValue
from dovetail.inspect.draw import SUFFIXES, draw
from dovetail.inspect.dump_folder import DumpedStep, read_dump, read_step

_To = Annotated[
    Path | None, typer.Option("--to", help="The file to write: .svg, .dot or .txt. Default: standard output.")
]
_Step = Annotated[
    str | None,
    typer.Option("--step", help="For a folder: the step to draw. Default: the last one of each part."),
]

_Level = Annotated[
    int | None,
    typer.Option("--level", min=1, help="Draw modules as rows, identified by this many parts of their paths."),
]


def draw_command(
    dump: Dumped,
    to: _To = None,
    step: _Step = None,
    level: _Level = None,
    as_json: AsJson = False,
    allow: Allow = None,
) -> None:
    """Draw a dumped program: storages as lanes, in order of execution.

    DUMP is one .json file of a dump, or a folder of one compilation in it. With several programs to draw, --to gets the
    program's name in front of its ending.

    Exit status: 0, or 2 for a file that is not a dumped program, and one that cannot be written.
    """
    if to is not None and to.suffix.lower() not in SUFFIXES:
        reason = "its suffix is not that of a known format"
        raise BadOptionValue(option="--to", value=str(to), reason=reason, expected=f"a name in {', '.join(SUFFIXES)}")
    place = Path(dump)
    steps = [read_step(place, allow=allow or ())] if place.is_file() else _chosen(place, step, allow or ())
    written = []
    for one in steps:
        if one.program is None:
            raise BadArtifact(path=one.path, expected="a program", reason=one.reason, hint="draw another step")
        if to is None:
            if not as_json:
                sys.stdout.write(
                    f"{one.program.name} after {one.name}\n{draw(one.program, level=level, hints=one.hints)}\n"
                )
            continue
        path = to if len(steps) == 1 else to.with_name(f"{to.stem}-{one.program.name}{to.suffix}")
        draw(one.program, to=path, level=level, hints=one.hints)
        written.append(str(path))
        if not as_json:
            sys.stdout.write(f"{path}\n")
    if as_json:
        drawn = [draw(s.program, level=level, hints=s.hints) for s in steps if s.program is not None and to is None]
        print_json({"written": written, "drawn": drawn})


def _chosen(folder: Path, name: str | None, allow: Sequence[str]) -> list[DumpedStep]:
    """The steps of that name, or the last one of each part of each compilation."""
    found: list[DumpedStep] = []
    known: dict[str, None] = {}
    for compilation in read_dump(folder, allow=allow):
        last: dict[str, DumpedStep] = {}
        for step in compilation.steps:
            known[step.name] = None
            if name is None or step.name == name:
                last[step.part] = step
        parts = [part for part in last if part != "joint"] or list(last)
        found += [last[part] for part in parts]
    if not found:
        hint = f"steps are {', '.join(known)}"
        raise BadArtifact(path=folder, expected="a dump", reason=f"there is no step {name!r} in it", hint=hint)
    return found
