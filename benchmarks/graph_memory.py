"""Measure the peaks of compiled graphs beside eager's, and beside what is predicted: forward alone, and with backward.

Peaks are above what is there when a call begins, gradients being none. A limit is half of the way from the lowest peak
that is found to the one without a limit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import dovetail
from benchmarks.models import Workload, build_workload
from benchmarks.tables import Rows, write_tables
from dovetail.errors import MemoryLimitTooLow
from dovetail.inspect.memory import measure_peak

Json = dict[str, Any]
Run = Callable[..., Tensor]

_WARM = 2
_HEAD = ["model", "of", "eager, MB", "measured / eager", "predicted - measured, bytes", "loss and gradients"]


@dataclass(frozen=True, slots=True)
class GraphPeak:
    """One way to run the graph of one model. equal: whether the loss and all gradients are eager's, bit by bit."""

    model: str
    way: str
    eager_bytes: int
    peak_bytes: int
    predicted_bytes: int
    equal: bool


def measure_graphs(model: str) -> Json:
    """Measure one model in every way."""
    rows = []
    for trains in (False, True):
        expected, eager = _measure(build_workload(model), None, trains=trains)
        free = _peak_said(model, trains=trains, memory_limit="1TiB")
        limits = {"lowest limit": _floor(model, trains=trains)}
        limits["limit half way"] = (limits["lowest limit"] + free) // 2
        ways: dict[str, Json] = {"as it is": {"partition": "default"}, "no limit": {}}
        ways.update((name, {"memory_limit": f"transient:{limit}B"}) for name, limit in limits.items())
        for name, options in ways.items():
            workload = build_workload(model)
            compiled = dovetail.compile(workload.model, **options)
            found, peak = _measure(workload, compiled, trains=trains)
            said = int(_said(workload, compiled, trains=trains).run_bytes)
            equal = all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
            way = f"{'forward and backward' if trains else 'forward'}, {name}"
            rows.append(asdict(GraphPeak(model, way, eager, peak, said, equal)))
    return {"rows": rows}


def _call(workload: Workload, run: Run | None, *, trains: bool) -> Tensor:
    torch.manual_seed(0)
    with torch.set_grad_enabled(trains):
        answer = (run or workload.model)(**workload.inputs)
    loss = answer if isinstance(answer, Tensor) else answer["loss"]
    if trains:
        loss.backward()
    return loss.detach()


def _measure(workload: Workload, run: Run | None, *, trains: bool) -> tuple[list[Tensor], int]:
    """The loss and the gradients of a warm call, and its peak."""
    for _ in range(_WARM):
        _call(workload, run, trains=trains)
        workload.model.zero_grad()
    report = measure_peak(lambda: _call(workload, run, trains=trains))
    gradients = [p.grad for p in workload.model.parameters() if p.grad is not None]
    return [report.result, *(gradient.clone() for gradient in gradients)], report.peak_bytes


def _said(workload: Workload, compiled: Any, *, trains: bool) -> Any:
    """What `explain` says of the memory of a call."""
    inputs = workload.inputs
    with torch.set_grad_enabled(trains):
        by_place = "target" in inputs  # a name that `explain` has as well
        found = dovetail.explain(compiled, *inputs.values()) if by_place else dovetail.explain(compiled, **inputs)
        return found.call


def _peak_said(model: str, *, trains: bool, **options: Any) -> int:
    workload = build_workload(model)
    compiled: Any = dovetail.compile(workload.model, **options)
    _call(workload, compiled, trains=trains)
    return int(_said(workload, compiled, trains=trains).peak_bytes)


def _floor(model: str, *, trains: bool) -> int:
    limit = 1
    for _ in range(3):  # forward may name another one than backward
        try:
            _peak_said(model, trains=trains, memory_limit=f"transient:{limit}B")
        except MemoryLimitTooLow as error:
            limit = int(str(error.facts["floor_bytes"]))
    return limit


def write_graphs_report(answers: list[Json], machine: Json, out: Path) -> None:
    """Print the table, and write `graph-memory.json` and `graph-memory.md` into `out`."""
    rows = [GraphPeak(**row) for answer in answers for row in answer.get("rows", ())]
    failed = [[answer["model"], answer["error"]] for answer in answers if "error" in answer]
    cells = [
        [
            row.model,
            row.way,
            f"{row.eager_bytes / 1e6:.1f}",
            f"{row.peak_bytes / row.eager_bytes:.3f}",
            str(row.predicted_bytes - row.peak_bytes),
            "eager's" if row.equal else "other bits",
        ]
        for row in rows
    ]
    tables: dict[str, tuple[list[str], Rows]] = {"Graphs": (_HEAD, cells)}
    if failed:
        tables["Not measured"] = ["model", "why"], failed
    write_tables("graph-memory", tables, {"rows": [asdict(row) for row in rows]}, machine, out)
