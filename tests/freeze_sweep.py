"""Search for models that do something else when they are frozen: random modules, one after the other.

    python -m tests.freeze_sweep --minutes 10
    python -m tests.freeze_sweep --programs 5000 --minutes 60 --shard 1/2 --state freeze-1.json

`freeze_programs` says what the modules are, `freeze_agreement` what is checked. Each one that fails is made as small as
it gets and written as a file that runs by itself (`sweep-failures/`). With a state file, the search goes on where it
stopped. The exit status is 1 when something failed.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dovetail.errors import DovetailError
from tests.freeze_agreement import check_program
from tests.freeze_programs import FreezeProgram, freeze_program, is_valid
from tests.searching import Standing, begin, keep, parser_of, quietly

_SMALLER_SECONDS = 60.0
_FILE = '''"""{kind}"""

import torch

from tests.freeze_agreement import check_program
from tests.freeze_programs import FreezeProgram, Held, Method

PROGRAM = {program}

if __name__ == "__main__":
    check_program(PROGRAM)
'''


@dataclass
class State(Standing):
    """Where a search stands. next: the first seed that was not tried. failures: seed -> first line of the error."""

    refused: int = 0


def search(
    state: State, step: int, seconds: float, programs: int | None, folder: Path, on_step: Callable[[State], None]
) -> None:
    """Try seeds `state.next`, `state.next + step`, ... up to a limit; `state` is kept up to date."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and (programs is None or state.tried < programs):
        program = freeze_program(state.next)
        error = failure_of(program)
        if _is_refusal(error):
            state.refused += 1
        elif error is not None:
            state.failures[str(program.seed)] = kind_of(error)
            write_failure(program, error, folder)
        state.tried += 1
        state.next += step
        on_step(state)


def failure_of(program: FreezeProgram) -> Exception | None:
    """What went wrong when the program was frozen and compared with eager."""
    try:
        check_program(program)
    except Exception as error:
        return error
    return None


def kind_of(error: Exception) -> str:
    """The beginning of the error without its numbers: equal for one bug in two programs."""
    first = str(error).split("\n")[0].split(": eager has")[0]
    return f"{type(error).__name__}: {re.sub(r'-?[0-9][0-9.]*', 'N', first)}"


def write_failure(program: FreezeProgram, error: Exception, folder: Path) -> Path:
    """Write the smallest program that fails in the same way."""
    small = smallest(program, kind_of(error))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"freeze_{program.seed}.py"
    path.write_text(_FILE.format(kind=kind_of(error), program=small))
    return path


def smallest(program: FreezeProgram, kind: str) -> FreezeProgram:
    """A program from which nothing can be taken without that it stops failing in this way."""
    end = time.monotonic() + _SMALLER_SECONDS
    while time.monotonic() < end:
        found = next((p for p in program.smaller() if is_valid(p) and _fails_alike(p, kind)), None)
        if found is None:
            break
        program = found
    return program


def _fails_alike(program: FreezeProgram, kind: str) -> bool:
    error = failure_of(program)
    return error is not None and kind_of(error) == kind


def _is_refusal(error: Exception | None) -> bool:
    return isinstance(error, DovetailError) and not error.code.startswith("DT-INTERNAL")


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = parser_of("tests.freeze_sweep", __doc__)
    parser.add_argument("--failures", type=Path, default=Path("sweep-failures"), help="folder for failing programs")
    return parser.parse_args(argv)


@quietly()
def main(argv: list[str] | None = None) -> int:
    """Search, and say now and then how far it is."""
    options = _arguments(argv)
    state, shards = begin(options, State(0))

    def note(now: State) -> None:
        keep(options, now)
        if now.tried % 100 == 0:
            print(f"{now.tried} programs, {now.refused} refused, {len(now.failures)} failures", flush=True)

    search(state, shards, options.minutes * 60, options.programs, options.failures, note)
    print(f"{state.tried} programs, {state.refused} refused, {len(state.failures)} failures")
    for label, kind in state.failures.items():
        print(f"{options.failures / f'freeze_{label}.py'}: {kind}")
    return 1 if state.failures else 0


if __name__ == "__main__":
    sys.exit(main())
