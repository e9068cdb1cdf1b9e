"""What machine code for pointwise nodes gains: small training steps, and optimizers alone, in turns on one thread.

Each workload has a process of its own, in which eager mode, a step with `executors=("aten",)` and one with
`("native", "aten")` are called by turns. A ratio is the median over the rounds of eager's time to the other's.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

import dovetail
from benchmarks.processes import describe_machine, last_line_of
from benchmarks.small_steps import SMALL_STEPS, Step
from benchmarks.tables import write_tables
from dovetail.inspect.memory import measure_peak

WORKLOADS = tuple(SMALL_STEPS)
WAYS: dict[str, tuple[str, ...]] = {"eager": (), "aten": ("aten",), "native": ("native", "aten")}
_HEAD = ["step", "eager, us", "aten, us", "native, us", "eager / aten", "eager / native", "aten / native"]
_HEAD += [
    "first call, CPU s: aten",
    "native",
    "native, second process",
    "peak above state, kB: eager",
    "aten",
    "native",
]
_TURN, _WARM_UP = 5, 10
_CACHE, _AGAIN = "DOVETAIL_CACHE_DIR", "again"


@dataclass(frozen=True, slots=True)
class NativeCost:
    """By way: microseconds of a call, processor seconds of the first, and its peak. ratios: see the module.

    again_s: of the first call of native code in a second process, which finds on disk what the first one left there.
    """

    workload: str
    call_us: dict[str, float]
    first_s: dict[str, float]
    peak_bytes: dict[str, int]
    ratios: dict[str, float]
    again_s: float = 0.0


def _workload(name: str) -> Step:
    torch.manual_seed(0)
    return SMALL_STEPS[name]()


def _compiled(name: str, way: str) -> Step:
    step = _workload(name)
    if not WAYS[way]:
        return step

    def run() -> object:
        return step()

    return dovetail.compile_step(run, executors=WAYS[way])


def first_call(step: Step) -> float:
    """Processor seconds of the first call of a compiled step."""
    start = time.process_time()
    step()
    return time.process_time() - start


def _prepare() -> None:
    torch.set_num_threads(1)
    dovetail.compile_step(lambda: torch.ones(2) + 1)()  # what is imported once


def measure(name: str, rounds: int) -> NativeCost:
    """Call the ways of one workload by turns, in this process."""
    _prepare()
    steps: dict[str, Step] = {}
    first: dict[str, float] = {}
    for way in WAYS:
        steps[way] = _compiled(name, way)
        first[way] = first_call(steps[way])
        for _ in range(_WARM_UP):
            steps[way]()
    spent: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(rounds):
        for way, step in steps.items():
            begin = time.perf_counter()
            for _ in range(_TURN):
                step()
            spent[way].append((time.perf_counter() - begin) / _TURN)
    pairs = {
        "eager / aten": ("eager", "aten"),
        "eager / native": ("eager", "native"),
        "aten / native": ("aten", "native"),
    }
    ratios = {
        text: statistics.median(a / b for a, b in zip(spent[one], spent[other], strict=True))
        for text, (one, other) in pairs.items()
    }
    return NativeCost(
        name,
        {way: 1e6 * statistics.median(times) for way, times in spent.items()},
        first,
        {way: measure_peak(step).peak_bytes for way, step in steps.items()},
        ratios,
    )


def _measured_apart(name: str, rounds: int) -> NativeCost:
    """Measure in two processes, which share a new folder for native code."""
    former = os.environ.get(_CACHE)
    with tempfile.TemporaryDirectory(prefix="dovetail-bench-") as folder:
        os.environ[_CACHE] = folder
        try:
            cost = NativeCost(**json.loads(last_line_of("native", name, str(rounds))))
            return replace(cost, again_s=float(last_line_of("native", name, _AGAIN)))
        finally:
            os.environ.pop(_CACHE)
            if former is not None:
                os.environ[_CACHE] = former


def write_native_report(rounds: int, out: Path) -> None:
    """Print the table, and write `native.json` and `native.md` into `out`."""
    rows = [_measured_apart(name, rounds) for name in WORKLOADS]
    cells = [
        [
            row.workload,
            *(f"{row.call_us[way]:,.0f}" for way in WAYS),
            *(f"{ratio:.2f}" for ratio in row.ratios.values()),
            *(f"{row.first_s[way]:.2f}" for way in ("aten", "native")),
            f"{row.again_s:.2f}",
            *(f"{row.peak_bytes[way] / 1e3:,.1f}" for way in WAYS),
        ]
        for row in rows
    ]
    record: dict[str, Any] = {"rounds": rounds, "rows": [asdict(row) for row in rows]}
    write_tables("native", {"Native": (_HEAD, cells)}, record, describe_machine("cpu"), out)


if __name__ == "__main__":
    if sys.argv[2] == _AGAIN:
        _prepare()
        print(first_call(_compiled(sys.argv[1], "native")))
        sys.exit()
    print(json.dumps(asdict(measure(sys.argv[1], int(sys.argv[2])))))
