"""Place the buffers of programs and of published problems in arenas: how small, and how long it takes; and run there.

Programs are whole training steps of the models (AdamW), as they run. Published problems come from `tests/data`. Steps
that run in an arena are compared with the same steps without one, and with eager mode: bits, peaks, and time.
"""

from __future__ import annotations

import csv
import statistics
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.measure import EAGER
from benchmarks.tables import write_tables
from benchmarks.training_steps import ARENA, DOVETAIL, make_training_step
from dovetail.frontends.step.step import CompiledStep
from dovetail.inspect.memory import measure_peak
from dovetail.memory.check import verify_placement
from dovetail.memory.problem import Buffer, Problem
from dovetail.memory.solve import solve

CAPACITY = 1_048_576
_PROBLEMS = Path(__file__).resolve().parent.parent / "tests" / "data" / "minimalloc"
_DECISIONS = 1_000_000
_CALLS = 3
_ROUNDS = 9
_RUN_HEAD = (
    *("step", "eager, bytes", "without", "in an arena", "predicted", "arena, bytes", "held in it", "same bits"),
    *("eager, ms", "without / eager", "arena / eager"),
)
_HEAD = ("problem", "buffers", "bound, bytes", "arena, bytes", "ratio", "seconds", "placed by")


@dataclass(frozen=True, slots=True)
class ArenaCost:
    """One problem. time_s: of processor time; with all else that `explain` says, for a step."""

    name: str
    buffers: int
    bound_bytes: int
    size_bytes: int
    time_s: float
    by: str


def measure_problem(name: str, problem: Problem, capacity_bytes: int | None = None) -> ArenaCost:
    """Place the buffers, and prove the placement."""
    start = time.process_time()
    placement = solve(problem, capacity_bytes, _DECISIONS)
    time_s = time.process_time() - start
    verify_placement(problem, placement, name)
    return ArenaCost(name, len(problem.buffers), placement.bound_bytes, placement.size_bytes, time_s, placement.by)


def published_problems() -> Iterator[tuple[str, Problem]]:
    """The problems of minimalloc, by letter; all sizes are whole KiB."""
    for path in sorted(_PROBLEMS.glob("*.csv")):
        with path.open(encoding="utf-8") as file:
            rows = [{key: int(text) for key, text in row.items()} for row in csv.DictReader(file)]
        buffers = (Buffer(f"buffer {row['id']}", row["size"], row["lower"], row["upper"]) for row in rows)
        yield f"minimalloc {path.name[0]}", Problem(tuple(buffers), 1024)


def measure_steps(models: Iterable[str]) -> Iterator[ArenaCost]:
    """One row for the step of each model."""
    for model in models:
        step = make_training_step(DOVETAIL, model, clip=False)
        for _ in range(_CALLS):
            step()
        assert isinstance(step.run, CompiledStep), "it was compiled"
        start = time.process_time()
        found = step.run.explain().arena
        time_s = time.process_time() - start
        yield ArenaCost(f"step of {model}", found.buffers, found.bound_bytes, found.size_bytes, time_s, found.by)


@dataclass(frozen=True, slots=True)
class ArenaRun:
    """A step in eager mode, without an arena, and in one. peaks, times_s: of these three, the latter medians of turns.

    predicted_bytes: of the step in its arena. size_bytes: of the arena. share: of what is made that lies in it.
    same_bits: whether parameters and losses of all three are equal.
    """

    name: str
    peaks: tuple[int, ...]
    times_s: tuple[float, ...]
    predicted_bytes: int
    size_bytes: int
    share: float
    same_bits: bool


def run_steps(models: Iterable[str]) -> Iterator[ArenaRun]:
    """One row for the step of each model. The three take turns, with equal random numbers in each."""
    for model in models:
        steps = [make_training_step(way, model, clip=False) for way in (EAGER, DOVETAIL, ARENA)]
        losses: list[list[torch.Tensor]] = [[] for _ in steps]
        times: list[list[float]] = [[] for _ in steps]
        peaks = []
        for turn in range(_CALLS + _ROUNDS):
            for step, found, taken in zip(steps, losses, times, strict=True):
                torch.manual_seed(turn)
                start = time.perf_counter()
                found.append(step())
                taken.append(time.perf_counter() - start)
        for step in steps:
            torch.manual_seed(0)
            peaks.append(measure_peak(step.run, step.workload.inputs).peak_bytes)
        compiled = steps[-1].run
        assert isinstance(compiled, CompiledStep), "it was compiled"
        explained = compiled.explain()
        plan = explained.in_arena
        assert plan is not None, "it runs in an arena"
        yield ArenaRun(
            name=model,
            peaks=tuple(peaks),
            times_s=tuple(statistics.median(taken[_CALLS:]) for taken in times),
            predicted_bytes=explained.peak_bytes,
            size_bytes=plan.size_bytes,
            share=plan.held_bytes / max(1, plan.made_bytes),
            same_bits=len({step.digest() for step in steps}) == 1
            and all(torch.equal(a, b) and torch.equal(a, c) for a, b, c in zip(*losses, strict=True)),
        )


def write_arena_report(rows: list[ArenaCost], runs: list[ArenaRun], machine: dict[str, Any], out: Path) -> None:
    """Print the table, and write `arena.json` and `arena.md` into `out`."""
    cells = [
        [r.name, f"{r.buffers:,}", f"{r.bound_bytes:,}", f"{r.size_bytes:,}", _ratio(r), f"{r.time_s:.2f}", r.by]
        for r in rows
    ]
    tables = {"Arenas": (list(_HEAD), cells), "Steps in arenas": (list(_RUN_HEAD), list(map(_run_cells, runs)))}
    record = {"rows": [asdict(row) for row in rows], "runs": [asdict(run) for run in runs]}
    write_tables("arena", tables, record, machine, out)


def _run_cells(run: ArenaRun) -> list[str]:
    eager, without, arena = run.times_s
    bits = "yes" if run.same_bits else "NO"
    sizes = [f"{size:,}" for size in (*run.peaks, run.predicted_bytes, run.size_bytes)]
    return [
        *(run.name, *sizes, f"{100 * run.share:.0f} %", bits),
        *(f"{1e3 * eager:.1f}", f"{without / eager:.3f}", f"{arena / eager:.3f}"),
    ]


def _ratio(row: ArenaCost) -> str:
    return f"{row.size_bytes / row.bound_bytes:.4f}"
