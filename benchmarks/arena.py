"""Place the buffers of programs and of published problems in arenas: how small, and how long it takes.

Programs are whole training steps of the models (AdamW), as they run. Published problems come from `tests/data`.
"""

from __future__ import annotations

import csv
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.tables import write_tables
from benchmarks.training_steps import DOVETAIL, make_training_step
from dovetail.frontends.step.step import CompiledStep
from dovetail.memory.check import verify_placement
from dovetail.memory.problem import Buffer, Problem
from dovetail.memory.solve import solve

CAPACITY = 1_048_576
_PROBLEMS = Path(__file__).resolve().parent.parent / "tests" / "data" / "minimalloc"
_DECISIONS = 1_000_000
_CALLS = 3
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


def write_arena_report(rows: list[ArenaCost], machine: dict[str, Any], out: Path) -> None:
    """Print the table, and write `arena.json` and `arena.md` into `out`."""
    cells = [
        [r.name, f"{r.buffers:,}", f"{r.bound_bytes:,}", f"{r.size_bytes:,}", _ratio(r), f"{r.time_s:.2f}", r.by]
        for r in rows
    ]
    write_tables("arena", {"Arenas": (_HEAD, cells)}, {"rows": [asdict(row) for row in rows]}, machine, out)


def _ratio(row: ArenaCost) -> str:
    return f"{row.size_bytes / row.bound_bytes:.4f}"
