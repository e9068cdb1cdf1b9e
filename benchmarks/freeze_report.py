"""Tables of frozen models: for the terminal, as markdown, and as JSON with every row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.freeze import ColdStart, Latency, Measured
from benchmarks.freeze_artifact import LIMIT_LOAD_S, LIMIT_PEAK, LIMIT_PRIVATE, ArtifactCost
from benchmarks.freeze_worker import DOVETAIL, FAST, INDUCTOR, LOADED
from benchmarks.tables import Rows, write_tables

LIMIT_COLD = 0.1
"""What dovetail's cold start may take, as a share of inductor's; and loading, as a share of freezing."""

_MB = 1 << 20
_Table = tuple[list[str], Rows]


def write_freeze_report(
    found: Measured, artifact: ArtifactCost | None, machine: dict[str, Any], settings: dict[str, Any], out: Path
) -> None:
    """Print the tables, and write `freeze.json` and `freeze.md` into `out`, a folder that is made if need be."""
    tables = {
        "Latency": _latency_table(found.latencies),
        "Cold start, first case": _cold_table(found.cold),
        "A large model": _artifact_table(artifact),
        "Files that backends read": (
            ["model", "ONNX export, s", "freeze, s"],
            [[name, f"{a.get('export_s', 0):.1f}", f"{a.get('freeze_s', 0):.1f}"] for name, a in found.files.items()],
        ),
        "Left out": (["what, and why"], [[note] for note in found.notes]),
    }
    record = {
        "settings": settings,
        "latencies": [asdict(row) for row in found.latencies],
        "cold": [asdict(row) for row in found.cold],
        "artifact": None if artifact is None else asdict(artifact),
        "files": found.files,
        "notes": found.notes,
    }
    write_tables("freeze", tables, record, machine, out)


def cold_ratio(rows: Sequence[ColdStart], row: ColdStart) -> float | None:
    """A backend's cold start as a share of inductor's for the same model and threads."""
    for other in rows:
        if (other.model, other.threads, other.backend) == (row.model, row.threads, INDUCTOR):
            return None if None in (row.cold_s, other.cold_s) else row.cold_s / other.cold_s
    return None


def load_ratio(rows: Sequence[ColdStart], row: ColdStart) -> float | None:
    """How long loading takes as a share of freezing with the same passes."""
    if row.backend != LOADED or row.prepare_s is None:
        return None
    for other in rows:
        if (other.model, other.threads, other.backend) == (row.model, row.threads, FAST) and other.prepare_s:
            return row.prepare_s / other.prepare_s
    return None


def _latency_table(rows: Sequence[Latency]) -> _Table:
    head = ["model", "threads", "case", "backend", "p50, ms", "p95, ms", "least, ms"]
    head += ["to eager", "least - most", "of least", "of CPU", "difference"]
    cells = [
        [
            row.model,
            str(row.threads),
            row.case,
            row.backend,
            f"{row.p50_ms:.2f}",
            f"{row.p95_ms:.2f}",
            f"{row.least_ms:.2f}",
            f"{row.ratio:.2f}" + (" (slower)" if row.backend in DOVETAIL and row.ratio > 1 else ""),
            f"{row.ratio_range[0]:.2f} - {row.ratio_range[1]:.2f}",
            f"{row.least_ratio:.2f}",
            f"{row.cpu_ratio:.2f}",
            "none" if row.equal else f"{row.difference:.0e}",
        ]
        for row in rows
    ]
    return head, cells


def _cold_table(rows: Sequence[ColdStart]) -> _Table:
    head = ["model", "threads", "backend", "cold, s", "program, s", "whole, s", "to inductor", "RSS, MB", "peak, MB"]
    cells = []
    for row in rows:
        if row.error is not None:
            cells.append([row.model, str(row.threads), row.backend, row.error, *[""] * 5])
            continue
        ratio = cold_ratio(rows, row)
        beyond = " (beyond)" if row.backend in DOVETAIL and (ratio or 0) > LIMIT_COLD else ""
        loads = load_ratio(rows, row)
        share = "" if loads is None else f" ({loads:.0%} of freezing)"
        cells.append(
            [
                row.model,
                str(row.threads),
                row.backend,
                f"{row.cold_s:.2f}",
                f"{row.prepare_s:.2f}{share}",
                f"{row.wall_s:.1f}",
                "" if ratio is None else f"{ratio:.3f}{beyond}",
                f"{(row.rss_bytes or 0) / _MB:,.0f}",
                f"{(row.peak_bytes or 0) / _MB:,.0f}",
            ]
        )
    return head, cells


def _artifact_table(row: ArtifactCost | None) -> _Table:
    head = ["what", "measured", "wanted"]
    if row is None:
        return head, []
    return head, [
        ["model", f"{row.model_bytes / _MB:,.0f} MB; results equal: {row.equal}", ""],
        ["freeze, save", f"{row.freeze_s:.2f} s, {row.save_s:.2f} s; {row.file_bytes / _MB:,.0f} MB", ""],
        ["load", f"{row.load_s:.3f} s", f"{LIMIT_LOAD_S} s"],
        ["load, not in the page cache", f"{row.cold_load_s:.3f} s", ""],
        ['load, verify="full"', f"{row.full_load_s:.3f} s", ""],
        ["first call, second call", f"{row.first_call_s:.3f} s, {row.second_call_s:.3f} s", ""],
        ["second process: private memory", f"{row.private_share:.1%} of the constants", f"{LIMIT_PRIVATE:.0%}"],
        ["of which in the file's mapping", f"{row.mapped_private_share:.1%}", ""],
        ["peak, originals discarded", f"{row.peak_share:.2f} x the model", f"{LIMIT_PEAK} x"],
        ["peak, originals kept", f"{row.kept_peak_share:.2f} x the model", ""],
    ]
