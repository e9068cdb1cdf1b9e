"""Search for programs that mean something else when updates run early: random steps and other random programs, in turn.

    python -m tests.early_updates_sweep --minutes 10
    python -m tests.early_updates_sweep --programs 20000 --minutes 60 --shard 1/2 --state early-1.json

What fails is named by its seed and printed as a file that runs by itself. The exit status is 1 when something failed.
"""

from __future__ import annotations

import sys
import time

import torch

from tests.harness.functional_programs import FunctionalProgram, functional_program
from tests.random_steps import check_early, random_step
from tests.searching import Standing, begin, keep, parser_of


def program_of(seed: int) -> FunctionalProgram:
    """The program that is tried for a seed."""
    return random_step(seed) if seed % 2 else functional_program(seed)


def main(argv: list[str] | None = None) -> int:
    """Search, and say now and then how far it is."""
    options = parser_of("tests.early_updates_sweep", __doc__).parse_args(argv)
    state, shards = begin(options, Standing(0))
    torch.set_num_threads(1)
    end = time.monotonic() + options.minutes * 60
    while time.monotonic() < end and (options.programs is None or state.tried < options.programs):
        program = program_of(state.next)
        try:
            check_early(program)
        except Exception as error:
            state.failures[str(state.next)] = f"{type(error).__name__}: {error}"
            print(f"# seed {state.next}: {error}\n{program.source()}", flush=True)
        state.tried += 1
        state.next += shards
        keep(options, state)
        if state.tried % 1000 == 0:
            print(f"{state.tried} programs, {len(state.failures)} failures", flush=True)
    print(f"{state.tried} programs, {len(state.failures)} failures")
    return 1 if state.failures else 0


if __name__ == "__main__":
    sys.exit(main())
