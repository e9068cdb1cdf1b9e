"""What machine code gains: small training steps, and optimizers alone, in turns on one thread.

Each workload has a process of its own, in which eager mode, a step with `executors=("aten",)`, one with
`("native", "aten")`, the same with `numerics="fast"`, and other compilers where they are asked for (`small_peers`) are
called by turns. A ratio is the median over the rounds of eager's time to the other's.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

import dovetail
from benchmarks.processes import describe_machine, last_line_of
from benchmarks.small_peers import PeerSteps, Turn, missing_peers, turn_of
from benchmarks.small_steps import SMALL_STEPS, Step
from benchmarks.tables import write_tables
from dovetail.inspect.memory import measure_peak

WORKLOADS = tuple(SMALL_STEPS)
_NATIVE: dict[str, Any] = {"executors": ("native", "aten")}
WAYS: dict[str, dict[str, Any]] = {
    "eager": {},
    "aten": {"executors": ("aten",)},
    "native": _NATIVE,
    "fast": _NATIVE | {"numerics": "fast"},
}
_RATIOS = ("eager / aten", "eager / native", "eager / fast", "aten / native")
_FIRST = ("aten", "native", "fast")
_HEAD = ["step", *(f"{way}, us" for way in WAYS), *_RATIOS]
_HEAD += [f"first call, CPU s: {_FIRST[0]}", *_FIRST[1:], "native, second process"]
_HEAD += ["peak above state, kB: eager", *list(WAYS)[1:]]
_TURN, _WARM_UP = 5, 10
_CACHE, _AGAIN = "DOVETAIL_CACHE_DIR", "again"


@dataclass(frozen=True, slots=True)
class NativeCost:
    """By way: microseconds of a call, processor seconds of the first, and its peak. ratios: see the module.

    again_s: of the first call of native code in a second process, which finds on disk what the first one left there.
    Other compilers have no peak; why one was not measured is in failed.
    """

    workload: str
    call_us: dict[str, float]
    first_s: dict[str, float]
    peak_bytes: dict[str, int]
    ratios: dict[str, float]
    again_s: float = 0.0
    failed: dict[str, str] = field(default_factory=dict)


def _workload(name: str) -> Step:
    torch.manual_seed(0)
    return SMALL_STEPS[name]()


def _compiled(name: str, way: str) -> Step:
    step = _workload(name)
    if not WAYS[way]:
        return step

    def run() -> object:
        return step()

    return dovetail.compile_step(run, **WAYS[way])


def first_call(step: Step) -> float:
    """Processor seconds of the first call of a compiled step."""
    start = time.process_time()
    step()
    return time.process_time() - start


def _prepare() -> None:
    torch.set_num_threads(1)
    dovetail.compile_step(lambda: torch.ones(2) + 1)()  # what is imported once


def measure(name: str, rounds: int, peers: Collection[str] = ()) -> NativeCost:
    """Call the ways of one workload by turns, in this process; of other compilers those that work."""
    _prepare()
    steps: dict[str, Step] = {}
    first: dict[str, float] = {}
    for way in WAYS:
        steps[way] = _compiled(name, way)
        first[way] = first_call(steps[way])
    turns = {way: turn_of(step) for way, step in steps.items()}
    with ExitStack() as stack:
        failed = _add_peers(name, peers, turns, first, stack)
        spent = _in_turns(turns, rounds)
    pairs = [("eager", way) for way in turns if way != "eager"] + [("aten", "native")]
    ratios = {
        f"{one} / {other}": statistics.median(a / b for a, b in zip(spent[one], spent[other], strict=True))
        for one, other in pairs
    }
    return NativeCost(
        name,
        {way: 1e6 * statistics.median(times) for way, times in spent.items()},
        first,
        {way: measure_peak(step).peak_bytes for way, step in steps.items()},
        ratios,
        failed=failed,
    )


def _add_peers(
    name: str, peers: Collection[str], turns: dict[str, Turn], first: dict[str, float], stack: ExitStack
) -> dict[str, str]:
    """Add the turns of other compilers, and their first calls; tells what failed."""
    failed = dict(missing_peers(peers))
    for peer in peers:
        try:
            if peer not in failed:
                steps = stack.enter_context(PeerSteps(peer, name))
                turns[peer], first[peer] = steps.turn, steps.first_s
        except (OSError, ValueError) as error:
            failed[peer] = f"{type(error).__name__}: {error}"
    return failed


def _in_turns(turns: dict[str, Turn], rounds: int) -> dict[str, list[float]]:
    """Seconds of a step, by way and round."""
    for turn in turns.values():
        turn(_WARM_UP)
    spent: dict[str, list[float]] = {way: [] for way in turns}
    for _ in range(rounds):
        for way, turn in turns.items():
            spent[way].append(turn(_TURN))
    return spent


def _measured_apart(name: str, rounds: int, peers: Sequence[str]) -> NativeCost:
    """Measure in two processes, which share a new folder for native code."""
    former = os.environ.get(_CACHE)
    with tempfile.TemporaryDirectory(prefix="dovetail-bench-") as folder:
        os.environ[_CACHE] = folder
        try:
            cost = NativeCost(**json.loads(last_line_of("native", name, str(rounds), *peers)))
            return replace(cost, again_s=float(last_line_of("native", name, _AGAIN)))
        finally:
            os.environ.pop(_CACHE)
            if former is not None:
                os.environ[_CACHE] = former


def write_native_report(
    rounds: int, out: Path, peers: Sequence[str] = (), workloads: Sequence[str] = WORKLOADS
) -> None:
    """Print the tables, and write `native.json` and `native.md` into `out`. peers: see `small_peers`."""
    for peer, reason in missing_peers(peers).items():
        print(f"{peer}: {reason}")
    rows = [_measured_apart(name, rounds, peers) for name in workloads]
    cells = [
        [
            row.workload,
            *(f"{row.call_us[way]:,.0f}" for way in WAYS),
            *(f"{row.ratios[ratio]:.2f}" for ratio in _RATIOS),
            *(f"{row.first_s[way]:.2f}" for way in _FIRST),
            f"{row.again_s:.2f}",
            *(f"{row.peak_bytes[way] / 1e3:,.1f}" for way in WAYS),
        ]
        for row in rows
    ]
    tables: dict[str, tuple[list[str], list[list[str]]]] = {"Native": (_HEAD, cells)}
    if peers:
        head = ["step", *(f"{way}, us" for way in ("eager", "native", "fast", *peers))]
        head += [f"eager / {way}" for way in ("native", "fast", *peers)] + [
            f"first call, CPU s: {way}" for way in peers
        ]
        tables["Other compilers"] = (head, [_peer_cells(row, peers) for row in rows])
    record: dict[str, Any] = {"rounds": rounds, "rows": [asdict(row) for row in rows]}
    write_tables("native", tables, record, describe_machine("cpu"), out)


def _peer_cells(row: NativeCost, peers: Sequence[str]) -> list[str]:
    """A row of the table of other compilers; of one that failed, why."""

    def shown(found: dict[str, float], key: str, form: str) -> str:
        return format(found[key], form) if key in found else "-"

    cells = [row.workload, *(shown(row.call_us, way, ",.0f") for way in ("eager", "native", "fast"))]
    cells += [row.failed.get(way, shown(row.call_us, way, ",.0f")) for way in peers]
    cells += [shown(row.ratios, f"eager / {way}", ".2f") for way in ("native", "fast", *peers)]
    return cells + [shown(row.first_s, way, ".2f") for way in peers]


if __name__ == "__main__":
    if sys.argv[2] == _AGAIN:
        _prepare()
        print(first_call(_compiled(sys.argv[1], "native")))
        sys.exit()
    print(json.dumps(asdict(measure(sys.argv[1], int(sys.argv[2]), sys.argv[3:]))))
