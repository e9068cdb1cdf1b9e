"""Search for training steps that do something else when they are compiled: models, optimizers and features, crossed.

    python -m tests.step_sweep --minutes 10
    python -m tests.step_sweep --minutes 30 --shard 1/2 --state step-1.json
    python -m tests.step_sweep --case "gpt2 | AdamW fused | scaler"

First comes a list in which any two choices meet (`cases.matrix.pairs`), then rows are drawn at random. What is compared
says `tests.frontends.step.agreement`. With a state file, the search goes on where it stopped. The exit status is 1 when
something failed.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from dovetail.errors import DovetailError
from tests.frontends.step.agreement import Case, EagerFails, agree
from tests.frontends.step.cases.matrix import case_of, drawn, named, pairs
from tests.searching import Standing, begin, keep, parser_of, quietly


@dataclass
class State(Standing):
    """Where a search stands. next: the first row not tried. failures: what is wrong, by the name of the case.

    refused: how many of the failures are refusals. none: how many rows eager itself cannot train.
    """

    refused: int = 0
    none: int = 0


def search(state: State, step: int, seconds: float, programs: int | None, on_step: Callable[[State], None]) -> None:
    """Try rows `state.next`, `state.next + step`, ... up to a limit; `state` is kept up to date."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and (programs is None or state.tried < programs):
        case = case_at(state.next)
        error = failure_of(case)
        if isinstance(error, EagerFails):
            state.none += 1
        elif error is not None:
            state.failures[case.name] = kind_of(error)
            state.refused += isinstance(error, DovetailError)
        state.tried += 1
        state.next += step
        on_step(state)


def case_at(number: int) -> Case:
    """The case of a row: of the list of pairs, and of random rows after its end."""
    listed = pairs()
    return case_of(listed[number] if number < len(listed) else drawn(number))


def failure_of(case: Case) -> Exception | None:
    """What went wrong when both sides were run."""
    torch.compiler.reset()
    try:
        agree(case)
    except Exception as error:
        return error
    return None


def kind_of(error: Exception) -> str:
    """The error in one line."""
    return f"{type(error).__name__}: {re.sub(chr(10) + ' *', ' / ', str(error))[:600]}"


@quietly()
def main(argv: list[str] | None = None) -> int:
    """Search, and say now and then how far it is."""
    parser = parser_of("tests.step_sweep", __doc__)
    parser.set_defaults(first=0)
    parser.add_argument("--case", help="try only this one, named as failures are")
    options = parser.parse_args(argv)
    if options.case:
        agree(named(options.case))
        return 0
    state, shards = begin(options, State(0))

    def note(now: State) -> None:
        keep(options, now)
        if now.tried % 20 == 0:
            print(f"{now.tried} steps, {len(now.failures)} failures, {now.refused} of them refusals", flush=True)

    search(state, shards, options.minutes * 60, options.programs, note)
    print(f"{state.tried} steps of {len(pairs())} in the list, {len(state.failures)} failures")
    for label, kind in state.failures.items():
        print(f'--case "{label}": {kind}')
    return 1 if state.failures else 0


if __name__ == "__main__":
    sys.exit(main())
