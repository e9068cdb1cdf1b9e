"""What a search reads: the program and its inputs, from a file or a dump, and the verdicts of an interrupted search.

A file of verdicts has lines of JSON: what is searched (digests of the program, its inputs and the name of the check),
then one line for each candidate that was checked, by the digest of its text. A search that is started again asks for
the same candidates in the same order, and the file answers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dovetail.artifact.call import load_call
from dovetail.artifact.json_text import read_json_file
from dovetail.artifact.limits import MAX_JSON_BYTES
from dovetail.artifact.program_json import FORMAT, program_from_json
from dovetail.artifact.regular_file import read_regular
from dovetail.errors import BadArtifact, OtherSearch
from dovetail.inspect.dump_folder import DumpedCall, read_dump, read_step
from dovetail.inspect.minify_oracles import Failure
from dovetail.ir.program import Program
from dovetail.ir.sizes import Number
from dovetail.ir.text import emit, plain_call
from dovetail.pipeline.compile_trace import STEP_STATE
from dovetail.pipeline.differential import sample_inputs

_VERDICTS_FORMAT = 1
_HINT = "give a .json that DOVETAIL_DUMP or program_to_json wrote, or the folder of a dump"


@dataclass(frozen=True, slots=True)
class ProgramToMinify:
    """A program and its inputs. origin: where the inputs come from: `given`, `recorded` or `random`."""

    program: Program
    inputs: list[Any]
    origin: str


def read_source(path: Path, inputs: Path | None = None, *, allow: Iterable[str] = ()) -> ProgramToMinify:
    """The program in a file; of a dump, the first one whose call was recorded, or else the first one.

    Of a training step it is the one that writes the state, which its passes take.

    inputs: a file that `save_call` wrote; without it, the call that was recorded, or else random numbers.
    allow: operators of other packages that the program may call, as in `dovetail.load`.
    Raises: BadArtifact for files that hold something else, or inputs of another program.
    """
    program, hints, call = (_of_folder if path.is_dir() else _of_file)(path, tuple(allow))
    if inputs is not None:
        return ProgramToMinify(program, _checked_inputs(program, load_call(inputs), inputs), "given")
    if call is not None:
        return ProgramToMinify(program, _checked_inputs(program, list(call.inputs), path), "recorded")
    return ProgramToMinify(program, sample_inputs(program, hints), "random")


_Found = tuple[Program, Mapping[str, Number], DumpedCall | None]


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


def _checked_inputs(program: Program, inputs: list[Any], path: Path) -> list[Any]:
    if len(inputs) != len(program.inputs):
        reason = f"it holds {len(inputs)} inputs, and program {program.name} takes {len(program.inputs)}"
        raise BadArtifact(path=path, expected="the inputs of the program", reason=reason, hint=_HINT)
    return inputs


def program_digest(program: Program) -> str:
    """A digest of all that a program's text says: its inputs with their layouts, its nodes, its outputs."""
    lines = [f"{value.name}: {value.meta!r}" for value in program.inputs]
    lines += [emit(program, plain_call, {}).text, *map(str, program.signature.inputs)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def inputs_digest(inputs: Sequence[Any]) -> str:
    """A digest of what inputs hold and where in their memory they lie; not of who shares memory."""
    digest = hashlib.sha256()
    for item in inputs:
        if not isinstance(item, torch.Tensor):
            digest.update(repr(item).encode())
            continue
        digest.update(f"{item.dtype} {tuple(item.shape)} {item.stride()} {item.storage_offset()}".encode())
        flat = torch.empty(0, dtype=torch.uint8, device=item.device).set_(item.untyped_storage())
        digest.update(flat.cpu().numpy().tobytes())
    return digest.hexdigest()


class Verdicts:
    """What is known of candidates. asked: how often the check was run; answered: how often it needed not.

    Raises: OtherSearch when the file belongs to another program, other inputs, or another check.
    """

    def __init__(self, path: Path | None, program: Program, inputs: Sequence[Any], check: str) -> None:
        self.asked = 0
        self.answered = 0
        self._path = path
        self._known: dict[str, Failure | None] = {}
        self._met: set[str] = set()
        header = {"format": _VERDICTS_FORMAT, "check": check}
        if path is not None:
            header |= {"program": program_digest(program), "inputs": inputs_digest(inputs)}
            self._open(path, header)

    def get(self, digest: str) -> tuple[Failure | None] | None:
        """The verdict on a candidate, in a tuple; None when there is none."""
        if digest not in self._known:
            return None
        if digest not in self._met:
            self._met.add(digest)
            self.answered += 1
        return (self._known[digest],)

    def put(self, digest: str, failure: Failure | None) -> None:
        """Keep a verdict."""
        self.asked += 1
        self._met.add(digest)
        self._known[digest] = failure
        self._append({"candidate": digest, "failure": None if failure is None else failure.to_json()})

    def _open(self, path: Path, header: dict[str, object]) -> None:
        try:
            lines = read_regular(path, MAX_JSON_BYTES).split(b"\n") if path.exists() else []
        except (OSError, ValueError) as error:
            hint = "give another file; it is created if it does not exist"
            raise BadArtifact(path=path, expected="the verdicts of a search", reason=error, hint=hint) from error
        whole = lines[:-1]  # what follows the last line break was being written when the search was killed
        if not whole:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"")
            self._append(header)
            return
        try:
            self._read(path, whole, header)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise OtherSearch(path=path, what="its format (it holds no verdicts)") from error
        if lines[-1]:
            path.write_bytes(b"\n".join(whole) + b"\n")

    def _read(self, path: Path, lines: list[bytes], header: dict[str, object]) -> None:
        first = json.loads(lines[0])
        for what, expected in header.items():
            if first[what] != expected:
                raise OtherSearch(path=path, what=f"the {what}")
        for line in lines[1:]:
            entry = json.loads(line)
            failure = entry["failure"]
            self._known[entry["candidate"]] = None if failure is None else Failure.from_json(failure)

    def _append(self, entry: dict[str, object]) -> None:
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")
