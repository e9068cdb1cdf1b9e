"""Tables of what calls cost: for the terminal, as markdown, and as JSON with every row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.overhead import (
    DIRECT,
    LIMIT_PER_VIEW_US,
    LIMIT_US,
    CallCost,
    GuardCost,
    limit_per_input_us,
    per_input_us,
)
from benchmarks.tables import Rows, write_tables


def write_overhead_report(
    calls: Sequence[CallCost], guards: Sequence[GuardCost], machine: dict[str, Any], out: Path
) -> None:
    """Print the tables, and write `overhead.json` and `overhead.md` into `out`, a folder that is made if need be."""
    tables = {
        "A call, us": _call_table(calls),
        "Added to torch.compile(backend=eager), us": _added_table(calls),
        "The guard, us for each written view": _guard_table(guards),
    }
    record = {"calls": [asdict(r) for r in calls], "guards": [asdict(r) for r in guards]}
    write_tables("overhead", tables, record, machine, out)


def _call_table(rows: Sequence[CallCost]) -> tuple[list[str], Rows]:
    backends = list(dict.fromkeys(row.backend for row in rows))
    found = {(row.kind, row.inputs, row.backend): row for row in rows}
    cells = []
    for kind, inputs in dict.fromkeys((row.kind, row.inputs) for row in rows):
        chosen = [found.get((kind, inputs, backend)) for backend in backends]
        cells.append([kind, str(inputs), *(_number(row.us if row else None) for row in chosen)])
    return ["function", "inputs", *backends], cells


def _added_table(rows: Sequence[CallCost]) -> tuple[list[str], Rows]:
    cells = []
    for kind, backend in dict.fromkeys((row.kind, row.backend) for row in rows if row.backend in ("dovetail", DIRECT)):
        chosen = sorted((r for r in rows if (r.kind, r.backend) == (kind, backend)), key=lambda r: r.inputs)
        limit = LIMIT_US[chosen[0].has_gradients]
        slope = per_input_us(rows, kind, backend)
        added = [row.added_us for row in chosen]
        per_input = limit_per_input_us(rows, kind)
        verdict = _verdict(added[0], limit), _verdict(slope, per_input)
        shown = ", ".join(f"{row.inputs}: {_number(row.added_us)}" for row in chosen)
        cells.append(
            [kind, backend, shown, f"{limit:g}", verdict[0], _number(slope, 2), _number(per_input, 2), verdict[1]]
        )
    head = [
        "function",
        "through",
        "inputs: added",
        "limit",
        "one input",
        "per extra input",
        "limit",
        "per input",
    ]
    return head, cells


def _guard_table(rows: Sequence[GuardCost]) -> tuple[list[str], Rows]:
    cells = [
        [
            row.pattern,
            f"{row.views:,}",
            f"{row.us:,.2f}",
            f"{row.us / row.views:.2f}",
            f"{row.same_us / row.views:.2f}",
            _verdict(row.us / row.views, LIMIT_PER_VIEW_US),
        ]
        for row in rows
    ]
    return ["written views", "count", "us a call", "us a view", "same tensors again", "limit"], cells


def _verdict(value: float | None, limit: float | None) -> str:
    return "-" if value is None or limit is None else "within" if value <= limit else "beyond"


def _number(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
