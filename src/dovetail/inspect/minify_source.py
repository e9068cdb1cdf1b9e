"""Find the program to minify and inputs for it: in a file, or in a dump."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dovetail.artifact.call import load_call
from dovetail.artifact.json_text import read_json_file
from dovetail.artifact.program_json import FORMAT, program_from_json
from dovetail.errors import BadArtifact
from dovetail.inspect.dump_folder import Call, read_dump, read_step
from dovetail.ir.program import Program
from dovetail.ir.sizes import Number
from dovetail.pipeline.differential import sample_inputs
from dovetail.pipeline.trail import STEP_STATE

_HINT = "give a .json that DOVETAIL_DUMP or program_to_json wrote, or the folder of a dump"


@dataclass(frozen=True, slots=True)
class Source:
    """A program and its inputs. origin: where the inputs come from: `given`, `recorded` or `random`."""

    program: Program
    inputs: list[Any]
    origin: str


def read_source(path: Path, inputs: Path | None = None, *, allow: Iterable[str] = ()) -> Source:
    """The program in a file; of a dump, the first one whose call was recorded, or else the first one.
    Of a training step it is the one that writes the state, which its passes take.


    inputs: a file that `save_call` wrote; without it, the call that was recorded, or else random numbers.
    allow: operators of other packages that the program may call, as in `dovetail.load`.
    Raises: BadArtifact for files that hold something else, or inputs of another program.
    """
    program, hints, call = (_of_folder if path.is_dir() else _of_file)(path, tuple(allow))
    if inputs is not None:
        return Source(program, _fitting(program, load_call(inputs), inputs), "given")
    if call is not None:
        return Source(program, _fitting(program, list(call.inputs), path), "recorded")
    return Source(program, sample_inputs(program, hints), "random")


_Found = tuple[Program, Mapping[str, Number], Call | None]


def _of_folder(path: Path, allow: tuple[str, ...]) -> _Found:
    compilations = read_dump(path, allow=allow)
    found = [
        (step.program, step.hints, compilation.calls.get(step.part))
        for compilation in compilations
        for step in compilation.steps
        if step.program is not None
    ]
    if not found:
        reason = f"its programs could not be written: {compilations[0].steps[0].reason}"
        raise BadArtifact(path=path, expected="a dump", reason=reason, hint=_HINT)
    written = next((s for c in compilations for s in c.steps if s.name == STEP_STATE and s.program is not None), None)
    if written is not None and written.program is not None:  # the whole step, as its passes are given it
        call = next(c.calls.get(written.part) for c in compilations if written in c.steps)
        return written.program, written.hints, call
    return next((entry for entry in found if entry[2] is not None), found[0])


def _of_file(path: Path, allow: tuple[str, ...]) -> _Found:
    try:
        data = read_json_file(path)
        if isinstance(data, dict) and data.get("format") == FORMAT:
            return program_from_json(data, allow=allow, believe_descriptions=True, may_be_step=True), {}, None
    except (OSError, ValueError) as error:
        raise BadArtifact(path=path, expected="a program", reason=error, hint=_HINT) from error
    step = read_step(path, allow=allow)
    if step.program is None:
        raise BadArtifact(path=path, expected="a program", reason=step.reason, hint=_HINT)
    calls = {
        part: call for compilation in read_dump(path.parent, allow=allow) for part, call in compilation.calls.items()
    }
    return step.program, step.hints, calls.get(step.part)


def _fitting(program: Program, inputs: list[Any], path: Path) -> list[Any]:
    if len(inputs) != len(program.inputs):
        reason = f"it holds {len(inputs)} inputs, and program {program.name} takes {len(program.inputs)}"
        raise BadArtifact(path=path, expected="the inputs of the program", reason=reason, hint=_HINT)
    return inputs
