"""Read what `DOVETAIL_DUMP` wrote: for each compilation, the program at every step, and the calls that were kept."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dovetail.artifact.call import load_call
from dovetail.artifact.json_text import read_json_file
from dovetail.artifact.limits import check_integer
from dovetail.artifact.program_json import FORMAT, program_from_json
from dovetail.artifact.record_json import INTEGER, TEXT, TRUTH
from dovetail.artifact.source_names import checked_name
from dovetail.errors import BadArtifact
from dovetail.ir.program import Program
from dovetail.ir.sizes import Number
from dovetail.pipeline.dump import BACKWARD, FORWARD, JOINT

_FOLDER_NAME = re.compile(r"[\w .<>-]{0,300}(?<!\.\.)")
# What is read of a step besides its program and its hints.
_FACTS = {"compilation": TEXT, "forward_call_in": TEXT, "not_serializable": TEXT, "nodes": INTEGER, "comparable": TRUTH}
_HINT = "give a folder that DOVETAIL_DUMP (or dump=) wrote, one of the folders in it, or a .json file there"


@dataclass(frozen=True, slots=True)
class DumpedStep:
    """One step of a compilation. part: `joint`, `forward` or `backward`. facts: all that was written down about it.

    program: None where it could not be written; `reason` says why.
    """

    name: str
    part: str
    program: Program | None
    facts: Mapping[str, Any]
    path: Path

    @property
    def reason(self) -> str:
        """Why there is no program."""
        return str(self.facts.get("not_serializable", ""))

    @property
    def hints(self) -> dict[str, Number]:
        """A number for each size symbol."""
        return dict(self.facts.get("hints", {}))


@dataclass(frozen=True, slots=True)
class DumpedCall:
    """One call of a half that was kept. state: of the generator when it began."""

    inputs: tuple[Any, ...]
    state: torch.Tensor
    results: tuple[Any, ...] | None


@dataclass(frozen=True, slots=True)
class Compilation:
    """One folder of a dump. calls: by part."""

    folder: Path
    steps: tuple[DumpedStep, ...]
    calls: Mapping[str, DumpedCall]

    def of_part(self, part: str) -> tuple[DumpedStep, ...]:
        """The steps of a part that have a program, in order."""
        return tuple(step for step in self.steps if step.part == part and step.program is not None)


def read_dump(path: str | Path, *, allow: Iterable[str] = ()) -> list[Compilation]:
    """The compilations in a folder, in order; of one of them if it is that folder.

    allow: operators of other packages that its programs may call, as in `dovetail.load`.
    Raises: BadArtifact where there is none, or a file is damaged.
    """
    place = Path(path)
    if not place.is_dir():
        is_file = place.exists()
        reason = "it is a file, and only one step of a compilation" if is_file else "there is no such folder"
        hint = f"give its folder: {place.parent}" if is_file else _HINT
        raise BadArtifact(path=place, expected="a dump", reason=reason, hint=hint)
    folders = sorted(folder for folder in (place, *place.iterdir()) if folder.is_dir() and _step_files(folder))
    if not folders:
        raise BadArtifact(path=place, expected="a dump", reason="it has no programs", hint=_HINT)
    allowed = tuple(allow)
    return [_read_folder(folder, allowed) for folder in folders]


def read_step(path: Path, *, allow: Iterable[str] = ()) -> DumpedStep:
    """One step, or a program by itself. allow: as in `read_dump`. Raises: BadArtifact for a file that is neither."""
    try:
        facts = _parsed(path)
        if isinstance(facts, dict) and facts.get("format") == FORMAT:
            facts = {"program": facts}
        if not isinstance(facts, dict) or not facts.keys() & {"program", "not_serializable"}:
            raise ValueError("it has no program")
        if facts.get("part", JOINT) not in (JOINT, FORWARD, BACKWARD):
            raise ValueError(f"its part is {facts['part']!r}")
        _check_hints(facts.get("hints", {}))
        for name, coding in _FACTS.items():
            if name in facts:
                coding.read(facts[name])
        if not _FOLDER_NAME.fullmatch(facts.get("forward_call_in", "")):
            raise ValueError(f"{facts['forward_call_in']!r} is not a name of a folder beside it")
        held = facts.get("program")
        program = (
            None if held is None else program_from_json(held, allow=allow, believe_descriptions=True, may_be_step=True)
        )
        return DumpedStep(path.stem.partition("-")[2] or path.stem, facts.get("part", JOINT), program, facts, path)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadArtifact(path=path, expected="a step of a compilation", reason=error, hint=_HINT) from error


def _parsed(path: Path) -> Any:
    try:
        return read_json_file(path)
    except ValueError as error:
        raise ValueError(f"it is not JSON ({error})") from error


def _check_hints(hints: Any) -> None:
    """Raise ValueError unless these are numbers by size symbol."""
    if not isinstance(hints, dict):
        raise ValueError("its hints are not an object")
    for name, number in hints.items():
        checked_name(name)
        if type(number) is int:
            check_integer(number)
        elif type(number) not in (bool, float):
            raise ValueError(f"its hint for {name} is {number!r}")


def _step_files(folder: Path) -> Sequence[Path]:
    return sorted(path for path in folder.glob("*.json") if path.stem[:3].isdigit() and path.stem[3:4] == "-")


def _read_folder(folder: Path, allow: tuple[str, ...]) -> Compilation:
    steps = tuple(read_step(path, allow=allow) for path in _step_files(folder))
    calls = calls_in(folder)
    elsewhere = next((name for step in steps if (name := step.facts.get("forward_call_in"))), "")
    if FORWARD not in calls and elsewhere and (folder.parent / elsewhere).is_dir():
        calls.update({part: call for part, call in calls_in(folder.parent / elsewhere).items() if part == FORWARD})
    return Compilation(folder, steps, calls)


def calls_in(folder: Path) -> dict[str, DumpedCall]:
    """The calls that were kept in the folder of a compilation. Raises: BadArtifact for files that hold none."""
    calls: dict[str, DumpedCall] = {}
    for path in sorted(folder.glob("*.inputs.safetensors")):
        part = path.name.removesuffix(".inputs.safetensors")
        *inputs, state = load_call(path)
        if not _is_generator_state(state):
            reason = "the state of the random generator is not its last tensor"
            raise BadArtifact(path=path, expected="the inputs of a call", reason=reason, hint="write the dump again")
        results = folder / f"{part}.results.safetensors"
        calls[part] = DumpedCall(tuple(inputs), state, tuple(load_call(results)) if results.exists() else None)
    return calls


def _is_generator_state(state: object) -> bool:
    if not (isinstance(state, torch.Tensor) and state.dtype is torch.uint8):
        return False
    try:
        torch.Generator().set_state(state)
    except RuntimeError:
        return False
    return True
