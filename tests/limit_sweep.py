"""Search for training steps that do something else under a memory limit, or take more memory than they may.

    python -m tests.limit_sweep --minutes 10
    python -m tests.limit_sweep --minutes 30 --shard 1/2 --state limits-1.json
    python -m tests.limit_sweep --row 17

The rows are those of `tests.step_sweep` in another order. Each runs as it is with a limit that is far too low, which
tells the lowest peak on offer, and then under limits drawn between that and what it takes without one. Compared is what
`tests.frontends.step.agreement` compares; then the peak of one more call is measured, which may be neither above the
limit nor another than the step says. With a state file, the search goes on where it stopped. The exit status is 1 when
something failed.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

import dovetail
from dovetail.errors import DovetailError, MemoryLimitTooLow
from dovetail.inspect.memory import measure_peak
from tests.frontends.step.agreement import Case, EagerFails, agree
from tests.frontends.step.cases.matrix import pairs
from tests.searching import Standing, begin, keep, parser_of, quietly
from tests.step_sweep import case_at, kind_of

_CALLS = 8
_PRIME = 7919  # neighbours in the list are alike


class OverLimit(Exception):
    """A call took more memory than its limit."""


class OtherPeak(Exception):
    """A call took other memory than the step says."""


@dataclass
class State(Standing):
    """Where a search stands. next: the first row not tried. none: rows that eager cannot train, or that do not compile.

    limits: how many were tried. refused: those that are too low for a later kind of call. measured: calls whose peak
    was measured. other: those of which the step says another.
    """

    none: int = 0
    limits: int = 0
    refused: int = 0
    measured: int = 0
    other: int = 0


def case_of_row(number: int) -> Case:
    """The case of a row."""
    return case_at(place_of(number))


def place_of(number: int) -> int:
    """Where a row is in the list; rows after its end are random ones."""
    count = len(pairs())
    return number * _PRIME % count if number < count else number


def bounds_of(case: Case) -> tuple[int, int] | None:
    """The lowest and the free peak of the steps of a case; None where nothing of it compiles."""
    if case.options.get("dynamic"):
        return None  # refused: one program is for all sizes
    floors, peaks = [0], [0]
    for option in ({"memory_limit": "transient:1B"}, {"partition": "default"}):
        twin = case.twin()
        steps = {name: dovetail.compile_step(step, **case.options, **option) for name, step in twin.steps.items()}
        for number in range(3):
            twin.before(number)
            call = twin.call(number)
            with twin.around(number):
                try:
                    steps[call.step](*call.arguments, **call.keywords)
                except MemoryLimitTooLow as error:
                    floors.append(int(error.facts["floor_bytes"]))
                    break
                except DovetailError:
                    return None
        if "partition" in option:
            peaks += [peak for step in steps.values() if (peak := _said(step)) is not None]
    return (max(floors), max(peaks)) if max(floors) and max(peaks) else None


def try_row(number: int, state: State) -> None:
    """Run one row under a few limits. Raises: what is wrong."""
    case = case_of_row(number)
    drawn = random.Random(number)
    bounds = bounds_of(case)
    if bounds is None:
        state.none += 1
        return
    floor, free = bounds
    wrong: Exception | None = None
    for share in (0.0, drawn.random()):
        limit = floor + int(share * max(0, free - floor))
        limited = replace(
            case,
            options={**case.options, "memory_limit": f"transient:{limit}B"},
            may_refuse=True,
            captures=None,
            eager_calls=None,
        )
        agree(limited, steps=_CALLS)
        state.limits += 1
        try:
            measure(limited, limit, state)
        except (OverLimit, OtherPeak) as error:
            wrong = wrong or error
    if wrong is not None:
        raise wrong


def measure(case: Case, limit: int, state: State) -> None:
    """Measure the peak of a warm call. Raises: OverLimit, OtherPeak."""
    twin = case.twin()
    steps = case.compile(twin)
    for number in range(_CALLS):
        twin.before(number)
        call = twin.call(number)
        step = steps[call.step]
        before = (step.stats.eager_calls, len(step.stats.variants))
        with twin.around(number):
            try:
                run = partial(step, *call.arguments, **call.keywords)
                report = measure_peak(run) if number == _CALLS - 1 else None
                if report is None:
                    run()
            except DovetailError:  # a later kind of call, whose floor is higher
                state.refused += 1
                return
        if report is None or (step.stats.eager_calls, len(step.stats.variants)) != before or len(steps) > 1:
            continue
        if len(step.stats.variants) != 1:
            continue  # the step describes its last program, which may be another
        state.measured += 1
        said = _said(step)
        if report.peak_bytes > limit:
            raise OverLimit(f"the peak is {report.peak_bytes}, the limit {limit}, and the step says {said}")
        if said is not None and report.peak_bytes != said:
            state.other += 1
            if report.peak_bytes > said:
                raise OtherPeak(f"the peak is {report.peak_bytes}, and the step says {said}")


def _said(step: Any) -> int | None:
    try:
        peak = step.explain().peak_bytes
    except DovetailError:
        return None
    return int(peak) if peak is not None else None


def search(state: State, step: int, seconds: float, programs: int | None, on_row: Callable[[State], None]) -> None:
    """Try rows `state.next`, `state.next + step`, ... up to a limit; `state` is kept up to date."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and (programs is None or state.tried < programs):
        torch.compiler.reset()
        try:
            try_row(state.next, state)
        except EagerFails:
            state.none += 1
        except Exception as error:
            state.failures[f"{state.next}: {case_of_row(state.next).name}"] = kind_of(error)
        state.tried += 1
        state.next += step
        on_row(state)


@quietly()
def main(argv: list[str] | None = None) -> int:
    """Search, and say now and then how far it is."""
    parser = parser_of("tests.limit_sweep", __doc__)
    parser.set_defaults(first=0)
    parser.add_argument("--row", type=int, help="try only this one; failures name it first")
    options = parser.parse_args(argv)
    if options.row is not None:
        try_row(options.row, State(0))
        return 0
    state, shards = begin(options, State(0))

    def note(now: State) -> None:
        keep(options, now)
        if now.tried % 20 == 0:
            print(f"{now.tried} rows, {now.limits} limits, {len(now.failures)} failures", flush=True)

    search(state, shards, options.minutes * 60, options.programs, note)
    print(
        f"{state.tried} rows, {state.none} without a program, {len(state.failures)} failures; {state.limits} limits, "
        f"{state.refused} of them too low for a later call; "
        f"{state.measured} peaks measured, {state.other} other than said"
    )
    for label, kind in state.failures.items():
        print(f"--row {label}: {kind}")
    return 1 if state.failures else 0


if __name__ == "__main__":
    sys.exit(main())
