"""Tables of whole training steps: for the terminal, as markdown, and as JSON with every row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.step_call import LIMIT_SHARE, StepCall
from benchmarks.step_capture import LIMIT_S, CaptureCost
from benchmarks.step_logging import LoggingCost
from benchmarks.step_memory import StepMemory
from benchmarks.tables import Rows, write_tables

_MB = 1e6
Json = dict[str, Any]


def write_capture_report(
    captures: Sequence[CaptureCost], calls: Sequence[StepCall], machine: Json, settings: Json, out: Path
) -> None:
    """Print the tables, and write `step-capture.json` and `step-capture.md` into `out`, made if need be."""
    tables = {
        f"The first steps, CPU s (capture: at most {LIMIT_S:g} for gpt2-12)": _capture_table(captures),
        f"A later call (its own: at most {LIMIT_SHARE:.0%} of a step of 10 ms)": _call_table(calls),
    }
    record = {"settings": settings, "captures": [asdict(r) for r in captures], "calls": [asdict(r) for r in calls]}
    write_tables("step-capture", tables, record, machine, out)


def write_memory_report(
    rows: Sequence[StepMemory], logging: Sequence[LoggingCost], machine: Json, settings: Json, out: Path
) -> None:
    """Print the tables, and write `step-memory.json` and `step-memory.md` into `out`, made if need be."""
    tables = {
        "Peak of a step above weights and optimizer state, MB": _memory_table(rows),
        "Looking at the loss of each step, us": _logging_table(logging),
    }
    record = {"settings": settings, "rows": [asdict(r) for r in rows], "logging": [asdict(r) for r in logging]}
    write_tables("step-memory", tables, record, machine, out)


def _capture_table(rows: Sequence[CaptureCost]) -> tuple[list[str], Rows]:
    cells = []
    for row in rows:
        if row.error is not None:
            cells.append([row.model, row.way, row.error, *["-"] * 5])
            continue
        stages = ", ".join(f"{name} {seconds:.2f}" for name, seconds in (row.stages or {}).items())
        numbers = [_number(value, 1, 2) for value in (row.first_s, row.second_s, row.later_s, row.capture_s)]
        nodes = "-" if row.nodes is None else f"{row.nodes:,}"
        cells.append([row.model, row.way, *numbers, nodes, stages or "-"])
    return ["model", "way", "first", "second", "later", "capture", "nodes", "of which"], cells


def _call_table(rows: Sequence[StepCall]) -> tuple[list[str], Rows]:
    cells = [
        [row.model, row.error, *["-"] * 6]
        if row.error is not None
        else [
            row.model,
            str(row.tensors),
            f"{row.eager_ms:.2f}",
            f"{row.call_ms:.2f}",
            f"{row.program_ms:.2f}",
            f"{row.own_us:.0f}",
            f"{row.least_us:.0f}",
            f"{row.share:.2%}",
        ]
        for row in rows
    ]
    return ["model", "parameters", "eager ms", "call ms", "program ms", "own us", "least own us", "own share"], cells


def _memory_table(rows: Sequence[StepMemory]) -> tuple[list[str], Rows]:
    cells = []
    for row in rows:
        name = [row.model, "yes" if row.clip else "no", row.way]
        if row.error is not None:
            cells.append([*name, row.error, *["-"] * 7])
            continue
        low, high = row.quartiles or (None, None)
        cells.append(
            [
                *name,
                _number(row.peak_bytes, 1 / _MB, 2),
                _number(row.peak_vs_eager, 1, 3),
                _number(row.predicted_bytes, 1 / _MB, 2),
                _number(row.end_bytes, 1 / _MB, 2),
                _number(row.ms, 1, 1),
                _number(row.paired, 1, 3),
                "-" if low is None else f"{low:.3f} to {high:.3f}",
                "-" if row.equal is None else "yes" if row.equal else "no",
            ]
        )
    head = ["model", "clip", "way", "peak", "/ eager", "predicted", "left after", "ms", "time / eager", "quartiles"]
    head.append("eager's bits")
    return head, cells


def _logging_table(rows: Sequence[LoggingCost]) -> tuple[list[str], Rows]:
    cells = [
        [row.way, row.error, *["-"] * 3]
        if row.error is not None
        else [
            row.way,
            _number(row.step_us, 1, 0),
            _number(row.loop_us, 1, 1),
            _number(row.inside_us, 1, 0),
            "yes" if row.same else "no",
        ]
        for row in rows
    ]
    return ["way", "silent step", "printed by the loop", "printed in the step", "eager's lines"], cells


def _number(value: float | None, scale: float, digits: int) -> str:
    return "-" if value is None else f"{value * scale:,.{digits}f}"
