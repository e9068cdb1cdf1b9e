"""Search for wrong results: random programs, one after the other, until the time is up.

    python -m tests.sweep --minutes 10
    python -m tests.sweep --minutes 60 --shard 2/4 --state sweep-2.json
    python -m tests.sweep --kind alias --programs 20000 --minutes 60
    python -m tests.sweep --kind both --sanitize

There are two kinds of programs: plain ones, and those whose arguments share bytes differently from call to call. With
`--sanitize`, what the analysis says of storages is held against every operator that runs (see `testing.sanitizer`).
Each failing program is made as small as it gets and written as a file (`sweep-failures/`) that runs by itself with the
root of the repository on PYTHONPATH. With a state file, the search goes on where it stopped. The exit status is 1 when
something failed.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import torch
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

import dovetail
from dovetail.errors import DovetailError
from dovetail.testing.sanitizer import AliasSanitizer
from tests.harness.agreement import check_program
from tests.harness.aliasing import AliasProgram, alias_program
from tests.harness.programs import RandomProgram, random_program
from tests.harness.shrinking import shrink_program
from tests.searching import Standing, begin, keep, parser_of

_RUN = """

if __name__ == "__main__":
    import sys
    from types import SimpleNamespace

    import dovetail
    from dovetail.testing.sanitizer import AliasSanitizer
    from tests.harness.agreement import check_program

    source = open(__file__).read()
    this = SimpleNamespace(source=lambda: source, build=lambda: (program, inputs))
    check_program(this, dovetail.compile, {seeds})
    with AliasSanitizer("all"):
        check_program(this, dovetail.compile, {seeds})
    sys.exit("it agrees with eager now")
"""

AnyProgram: TypeAlias = RandomProgram | AliasProgram
GENERATORS: dict[str, tuple[Callable[[int], AnyProgram], ...]] = {
    "plain": (random_program,),
    "alias": (alias_program,),
    "both": (random_program, alias_program),
}


@dataclass
class State(Standing):
    """Where a search stands. next: the first seed that was not tried. failures: label -> first line of the error."""

    refused: int = 0
    kind: str = "plain"


@dataclass(frozen=True)
class Limits:
    """When a search ends: after so many seconds, or when so many programs were tried since it first began.

    sanitize: whether each program runs under the alias sanitizer.
    """

    seconds: float
    programs: int | None = None
    sanitize: bool = False


def search(state: State, step: int, limits: Limits, folder: Path, on_step: Callable[[State], None]) -> None:
    """Try seeds `state.next`, `state.next + step`, ... up to a limit; `state` is kept up to date."""
    end = time.monotonic() + limits.seconds
    while time.monotonic() < end and (limits.programs is None or state.tried < limits.programs):
        for generator in GENERATORS[state.kind]:
            _try(generator(state.next), state, folder, limits.sanitize)
        state.next += step
        on_step(state)


def _try(program: AnyProgram, state: State, folder: Path, sanitize: bool) -> None:
    error = failure_of(program, sanitize)
    if isinstance(error, DovetailError) and not error.code.startswith("DT-INTERNAL"):
        state.refused += 1
    elif error is not None:
        state.failures[label_of(program)] = kind_of(error)
        write_failure(program, error, folder, sanitize)
    state.tried += 1


def label_of(program: AnyProgram) -> str:
    """The name of a program: its seed, and its kind unless it is a plain one."""
    return f"{program.seed}" if isinstance(program, RandomProgram) else f"alias_{program.seed}"


def failure_of(program: AnyProgram, sanitize: bool = False) -> Exception | None:
    """What went wrong when the program was compiled and compared with eager."""
    try:
        with AliasSanitizer("all") if sanitize else nullcontext():
            check_program(program, partial(dovetail.compile, verify=2), program.seeds)
    except Exception as error:
        return error
    return None


def kind_of(error: Exception) -> str:
    """The first line of the error without its numbers: equal for one bug in two programs."""
    first = str(error).split("\n")[0].split(": eager has")[0]
    return f"{type(error).__name__}: {re.sub(r'[0-9]+', 'N', first)}"


def write_failure(program: AnyProgram, error: Exception, folder: Path, sanitize: bool = False) -> Path:
    """Write the smallest program that fails in the same way."""
    kind = kind_of(error)

    def fails_alike(smaller: AnyProgram) -> bool:
        found = failure_of(smaller, sanitize)
        return found is not None and kind_of(found) == kind

    small = shrink_program(program, fails_alike)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"seed_{label_of(program)}.py"
    path.write_text(f'"""{kind}"""\n\n{small.source()}{_RUN.format(seeds=small.seeds)}')
    return path


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = parser_of("tests.sweep", __doc__)
    parser.add_argument("--kind", choices=GENERATORS, default="both", help="which programs; a --state file has its own")
    parser.add_argument("--sanitize", action="store_true", help="check each operator with the alias sanitizer")
    parser.add_argument("--failures", type=Path, default=Path("sweep-failures"), help="folder for failing programs")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Search, with a progress bar."""
    options = _arguments(argv)
    state, shards = begin(options, State(0, kind=options.kind))
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    seconds = options.minutes * 60
    start = time.monotonic()
    columns: Any = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns) as progress:
        task = progress.add_task("no program yet", total=seconds)

        def show(now: State) -> None:
            text = f"{now.tried} programs, {len(now.failures)} failures, {now.refused} refused"
            progress.update(task, completed=time.monotonic() - start, description=text)
            keep(options, now)

        search(state, shards, Limits(seconds, options.programs, options.sanitize), options.failures, show)
    for label, kind in state.failures.items():
        print(f"{options.failures / f'seed_{label}.py'}: {kind}")
    return 1 if state.failures else 0


if __name__ == "__main__":
    sys.exit(main())
