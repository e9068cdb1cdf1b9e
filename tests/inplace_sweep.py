"""Search for programs that mean something else where they work in place: random functional ones, one after the other.

    python -m tests.inplace_sweep --minutes 10
    python -m tests.inplace_sweep --programs 50000 --minutes 60 --shard 1/2 --state inplace-1.json

Each program runs as it is and in place, and the checker is asked; then once more with decisions that are wrong on
purpose, which the checker must notice. Each failing program is made as small as it gets and written as a file that runs
by itself (`sweep-failures/`). With a state file, the search goes on where it stopped. The exit status is 1 when
something failed.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from tests.harness.functional_programs import FunctionalProgram, functional_program
from tests.harness.inplace_agreement import Disagreement, check_careless, check_dynamic, check_in_place
from tests.harness.shrinking import shrink_program
from tests.searching import Standing, begin, keep, parser_of

_RUN = """

if __name__ == "__main__":
    import sys
    from dataclasses import replace
    from functools import partial

    from torch.fx.experimental.proxy_tensor import make_fx

    from tests.harness.functional_programs import read_source
    from tests.harness.inplace_agreement import check_careless, check_dynamic, check_in_place

    this = replace(read_source(open(__file__).read()), seed={seed})
    {call}
    sys.exit("it works in place now")
"""
_DYNAMIC_EVERY = 200
_KINDS = ("in_place", "careless", "dynamic")


@dataclass
class State(Standing):
    """Where a search stands. next: the first seed that was not tried. wrong: programs that were made wrong on purpose.

    failures: label -> first line of the error.
    """

    wrong: int = 0


def search(
    state: State, step: int, seconds: float, programs: int | None, folder: Path, on_step: Callable[[State], None]
) -> None:
    """Try seeds `state.next`, `state.next + step`, ... up to a limit; `state` is kept up to date."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and (programs is None or state.tried < programs):
        program = functional_program(state.next)
        for kind in _KINDS if state.tried % _DYNAMIC_EVERY == 0 else _KINDS[:2]:
            error = failure_of(program, kind, state)
            if error is not None:
                state.failures[f"{kind}_{program.seed}"] = kind_of(error)
                write_failure(program, kind, error, folder)
        state.tried += 1
        state.next += step
        on_step(state)


def failure_of(program: FunctionalProgram, kind: str, state: State | None = None) -> Exception | None:
    """What went wrong when the program was made to work in place."""
    try:
        if kind == "careless":
            is_wrong, _ = check_careless(program, commit=bool(program.seed & 2))
            if state is not None:
                state.wrong += is_wrong
        elif kind == "dynamic":
            check_dynamic(program, partial(make_fx, tracing_mode="symbolic"))
        else:
            check_in_place(program, commit=bool(program.seed & 2))
    except Exception as error:
        return error
    return None


def kind_of(error: Exception) -> str:
    """The beginning of the error without its numbers: equal for one bug in two programs."""
    first = re.sub(r"[-0-9.e+]+", "N", str(error).split("\n")[0])
    return f"{type(error).__name__}: {first[:40] if isinstance(error, Disagreement) else first}"


def write_failure(program: FunctionalProgram, kind: str, error: Exception, folder: Path) -> Path:
    """Write the smallest program that fails in the same way."""
    wanted = kind_of(error)

    def fails_alike(smaller: FunctionalProgram) -> bool:
        found = failure_of(smaller, kind)
        return found is not None and kind_of(found) == wanted

    small = shrink_program(program, fails_alike)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{kind}_{program.seed}.py"
    how = 'partial(make_fx, tracing_mode="symbolic")' if kind == "dynamic" else f"commit={bool(program.seed & 2)}"
    run = _RUN.format(seed=program.seed, call=f"check_{kind}(this, {how})")
    path.write_text(f'"""{wanted}"""\n\n{small.source()}{run}')
    return path


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = parser_of("tests.inplace_sweep", __doc__)
    parser.add_argument("--failures", type=Path, default=Path("sweep-failures"), help="folder for failing programs")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Search, and say now and then how far it is."""
    options = _arguments(argv)
    state, shards = begin(options, State(0))
    torch.set_num_threads(1)

    def note(now: State) -> None:
        keep(options, now)
        if now.tried % 1000 == 0:
            print(f"{now.tried} programs, {now.wrong} wrong ones noticed, {len(now.failures)} failures", flush=True)

    search(state, shards, options.minutes * 60, options.programs, options.failures, note)
    print(f"{state.tried} programs, {state.wrong} wrong ones noticed, {len(state.failures)} failures")
    for label, kind in state.failures.items():
        print(f"{options.failures / f'{label}.py'}: {kind}")
    return 1 if state.failures else 0


if __name__ == "__main__":
    sys.exit(main())
