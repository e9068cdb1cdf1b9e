"""A small failing program as a self-contained Python file, and proof that it fails.

A new folder gets `repro.py`, with the program's text and inputs of few elements, or `inputs.safetensors` beside it;
`program.json`; and a user's check. Exit status of `repro.py`: 1 if the failure was reproduced, 0 if it did not fail,
3 if it failed differently. It runs once, in a fresh process: only a failure there counts as confirmed.
"""

from __future__ import annotations

import json
import os
import pprint
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch

from dovetail.artifact.call import save_call
from dovetail.artifact.json_text import read_json_file
from dovetail.artifact.program_json import program_from_json, program_to_json
from dovetail.artifact.target_text import other_packages
from dovetail.errors import NotSerializable, OutputInTheWay
from dovetail.inspect.minify import Minified
from dovetail.inspect.minify_isolated import process_ending
from dovetail.inspect.minify_oracles import (
    CheckFile,
    Failure,
    FailureKind,
    NamedOracle,
    Passes,
    Run,
    SameFailure,
    has_open_sizes,
    oracle_from_json,
)
from dovetail.inspect.minify_recording import SEED
from dovetail.ir.program import Program
from dovetail.ir.sizes import number_text
from dovetail.ir.sub_programs import with_inner_nodes
from dovetail.ir.text import emit, plain_call
from dovetail.torch_compat.dispatch import storage_key

FAILS_AS_IT_SHOULD = 1
FAILS_OTHERWISE = 3
DOES_NOT_FAIL = "it does not fail"


def replay(
    run: Run,
    inputs: list[Any],
    oracle: Mapping[str, Any],
    failure: Mapping[str, Any],
    folder: Path,
    *,
    dynamic: bool,
    allow: Iterable[str] = (),
) -> NoReturn:
    """Check a program and exit with status 1 where it fails as it should, 0 where it does not, 3 otherwise.

    run: the program. oracle, failure: as their `to_json` wrote them. folder: where `program.json`, which a user's check
    is given as a graph module, and that check lie. dynamic: whether sizes of inputs are open. allow: operators of other
    packages that the program calls.
    """
    where = {"path": str(folder / oracle["path"])} if "path" in oracle else {}
    check = oracle_from_json({**oracle, **where})
    torch.manual_seed(SEED)
    if isinstance(check, CheckFile | Passes):
        data = read_json_file(folder / "program.json")
        program = program_from_json(data, allow=allow, believe_descriptions=True, may_be_step=True)
        found = check(program, inputs)
    else:
        found = check.of_function(run, inputs, dynamic=dynamic)
    if found is None:
        print(DOES_NOT_FAIL)
        sys.exit(0)
    names = getattr(run, "__code__", replay.__code__).co_varnames
    same = SameFailure(Failure.from_json(dict(failure)), names).holds(found)
    print(f"it fails{'' if same else ' otherwise'}: {found}")
    sys.exit(FAILS_AS_IT_SHOULD if same else FAILS_OTHERWISE)


_INLINE_ELEMENTS = 64
_SCRIPT = '''"""{title}

Run it: exit status {fails} means that the failure was reproduced, 0 that it did not fail, 3 that it failed differently.
"""

import math
import operator
from pathlib import Path

import torch

from dovetail.artifact.call import load_call
from dovetail.inspect.minify_script import replay
from dovetail.ops import prims

{named}
FAILURE = {failure}
ORACLE = {oracle}


{program}

def inputs():
{inputs}


if __name__ == "__main__":
    replay(run, inputs(), ORACLE, FAILURE, Path(__file__).parent, dynamic={dynamic}{allow})
'''


@dataclass(frozen=True, slots=True)
class Reproducer:
    """A script. is_confirmed: whether it failed as it should in a fresh process; ending: how that process ended."""

    script: Path
    is_confirmed: bool
    ending: str


def write_reproducer(
    folder: str | Path, minified: Minified, oracle: NamedOracle, seconds: float | None = None
) -> Reproducer:
    """Write a reproducer to a new folder and run it once. seconds: for that run; None waits for its end.

    Raises: OutputInTheWay when the folder exists; NotSerializable for a program that cannot be written down.
    """
    folder = Path(folder)
    if folder.exists():
        raise OutputInTheWay(path=folder)
    program = minified.program
    data = json.dumps(program_to_json(program), allow_nan=False, indent=1)
    text, named = _text(program)
    allow = sorted(other_packages([node.target for node in with_inner_nodes(program)]))
    folder.mkdir(parents=True)
    (folder / "program.json").write_text(data + "\n", encoding="utf-8")
    spec = oracle.to_json()
    if isinstance(oracle, CheckFile):
        shutil.copyfile(oracle.path, folder / oracle.path.name)
        spec["path"] = oracle.path.name
    lines = _inline_inputs(minified.inputs)
    if lines is None:
        save_call(folder / "inputs.safetensors", minified.inputs)
        lines = ['return load_call(Path(__file__).with_name("inputs.safetensors"))']
    script = folder / "repro.py"
    source = _SCRIPT.format(
        title=_docstring(f"{program.name}: {minified.failure}"),
        fails=FAILS_AS_IT_SHOULD,
        named="".join(f"{name} = {value}\n" for name, value in named.items()),
        failure=_literal(minified.failure.to_json()),
        oracle=_literal(spec),
        program=text,
        inputs="\n".join(f"    {line}" for line in lines),
        dynamic=has_open_sizes(program),
        allow=f", allow={allow!r}" if allow else "",
    )
    script.write_text(source, encoding="utf-8")
    return _confirmed(script, minified, seconds)


def _confirmed(script: Path, minified: Minified, seconds: float | None) -> Reproducer:
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    command = [sys.executable, str(script)]
    try:
        done = subprocess.run(
            command,
            timeout=seconds,
            check=False,
            capture_output=True,
            text=True,
            errors="replace",
            env={**os.environ, "PYTHONPATH": path},
        )
    except subprocess.TimeoutExpired:
        ending, is_same = "time limit", minified.failure.what == "time limit"
        return Reproducer(script, is_same, ending)
    ending = process_ending(done.returncode)
    if minified.failure.kind is FailureKind.CRASHED:
        is_same = ending == minified.failure.what and DOES_NOT_FAIL not in done.stdout
    else:
        is_same = done.returncode == FAILS_AS_IT_SHOULD
    said = done.stdout.strip().splitlines()[-1:] or done.stderr.strip().splitlines()[-1:]
    return Reproducer(script, is_same, ": ".join([ending, *said]))


def _text(program: Program) -> tuple[str, dict[str, str]]:
    """The program's text, and the objects that it mentions by name."""
    source = emit(program, plain_call, {})
    named: dict[str, str] = {}
    for name, held in source.globals.items():
        if not isinstance(held, torch.device):
            raise NotSerializable(what=name, reason=f"it is a {type(held).__name__}", hint="leave it out")
        named[name] = f"torch.device({str(held)!r})"
    return source.text, named


def _docstring(text: str) -> str:
    first = text.strip().partition("\n")[0]
    return first.replace("\\", "/").replace('"', "'")


def _literal(data: object) -> str:
    text = pprint.pformat(data, width=110, sort_dicts=False)
    return text.replace(": inf", ": math.inf").replace(": nan", ": math.nan")


def _inline_inputs(inputs: Sequence[Any]) -> list[str] | None:
    """Python that makes the inputs; None where there are too many elements, or their bytes are read in two ways."""
    storages: dict[int, tuple[str, torch.dtype]] = {}
    lines: list[str] = []
    names: list[str] = []
    elements = 0
    for place, item in enumerate(inputs):
        if not isinstance(item, torch.Tensor):
            names.append(number_text(item))
            continue
        memory = item.detach().untyped_storage()
        key = storage_key(item)
        if key not in storages:
            elements += memory.nbytes() // item.element_size()
            storages[key] = (f"m{len(storages)}", item.dtype)
            if elements > _INLINE_ELEMENTS or memory.nbytes() % item.element_size() or not _can_be_written(item):
                return None
            flat = torch.empty(0, dtype=item.dtype, device=item.device).set_(memory)
            numbers = textwrap.wrap(", ".join(map(number_text, flat.tolist())), 100)
            kind = f"dtype={item.dtype}, device={str(item.device)!r}"
            lines.append(f"{storages[key][0]} = torch.tensor(")
            lines += [f"    {'[' if not row else ' '}{text}" for row, text in enumerate(numbers)] or ["    ["]
            lines[-1] += "],"
            lines += [f"    {kind},", ")"]
        name, dtype = storages[key]
        if dtype != item.dtype or not _can_be_written(item):
            return None
        where = f"{tuple(item.shape)}, {tuple(item.stride())}, {item.storage_offset()}"
        grad = ".requires_grad_()" if item.requires_grad else ""
        lines.append(f"x{place} = {name}.as_strided({where}){grad}")
        names.append(f"x{place}")
    return [*lines, f"return [{', '.join(names)}]"]


def _can_be_written(item: torch.Tensor) -> bool:
    """Whether Python's numbers say what is in it."""
    is_plain = not (item.is_conj() or item.is_neg() or item.is_complex())
    return is_plain and (item.dtype.itemsize > 1 or not item.is_floating_point())
