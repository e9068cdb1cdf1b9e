"""Running a reproducer: check its program once, report how it fails, and exit with the matching status."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import torch

from dovetail.artifact.json_text import read_json_file
from dovetail.artifact.program_json import program_from_json
from dovetail.inspect.minify_failure import Failure, SameFailure
from dovetail.inspect.minify_oracles import CheckFile, Passes, Run, oracle_from_json
from dovetail.inspect.minify_recording import SEED

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
