"""Tables of what works in place: for the terminal, as markdown, and as JSON with every row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.decode import DecodeCost
from benchmarks.inplace import LIMIT_S, GraphCost, Outcome, ScaleCost
from benchmarks.optimizer_steps import StepCost
from benchmarks.tables import Rows, write_tables

_Table = tuple[list[str], Rows]


def write_inplace_report(
    graphs: Sequence[GraphCost],
    decodes: Sequence[DecodeCost],
    steps: Sequence[StepCost],
    scales: Sequence[ScaleCost],
    machine: dict[str, Any],
    out: Path,
) -> None:
    """Print the tables, and write `inplace.json` and `inplace.md` into `out`, a folder that is made if need be."""
    tables = {
        "Graphs: what dovetail's pass does": _graph_table(graphs),
        "Graphs: next to torch's pass": _peer_table(graphs),
        "Decoding with a key-value cache": _decode_table(decodes),
        "Optimizer steps": _step_table(steps),
        "Long graphs": _scale_table(scales),
    }
    record = {
        "graphs": [asdict(row) for row in graphs],
        "decodes": [asdict(row) for row in decodes],
        "steps": [asdict(row) for row in steps],
        "scales": [asdict(row) for row in scales],
    }
    write_tables("inplace", tables, record, machine, out)


def _graph_table(rows: Sequence[GraphCost]) -> _Table:
    cells = [
        [
            row.name,
            f"{row.nodes:,}",
            f"{row.in_place:,}",
            f"{row.copies} -> {row.dovetail.copies}",
            f"{row.copied_bytes:,}",
            f"{row.missed_bytes:,}",
            f"{row.saved_bytes:,}",
            _number(row.pass_s, 1e3, 1),
        ]
        for row in rows
    ]
    head = ["graph", "nodes", "in place", "copies", "bytes copied", "missed", "not allocated", "pass, ms"]
    return head, cells


def _peer_table(rows: Sequence[GraphCost]) -> _Table:
    cells = []
    for row in rows:
        cells.append([row.name, f"{row.allocated_bytes:,}", *_outcome(row.dovetail), *_outcome(row.torch)])
    one = ["writing nodes", "copies left", "bytes allocated", "ms", "equal"]
    return ["graph", "bytes allocated", *(f"dovetail: {one[0]}", *one[1:]), *(f"torch: {one[0]}", *one[1:])], cells


def _outcome(outcome: Outcome) -> list[str]:
    if outcome.error is not None:
        return [f"failed: {outcome.error}", "-", "-", "-", "-"]
    return [
        f"{outcome.writes:,}",
        f"{outcome.copies:,}",
        f"{outcome.allocated_bytes:,}",
        f"{outcome.time_s * 1e3:,.0f}",
        _yes(outcome.equal),
    ]


def _decode_table(rows: Sequence[DecodeCost]) -> _Table:
    cells = [
        [
            str(row.batch),
            f"{row.length:,}",
            row.backend,
            f"{row.cache_tensor_bytes:,}",
            _number(row.bytes_per_token, 1, 0),
            _number(row.cache_sized_per_token, 1, 1),
            _number(row.tokens_per_s, 1, 1),
            row.error or _yes(row.equal),
        ]
        for row in rows
    ]
    head = [
        "batch",
        "cache length",
        "backend",
        "bytes of a cache tensor",
        "bytes a token",
        "cache-sized blocks a token",
        "tokens/s",
        "logits equal eager's",
    ]
    return head, cells


def _step_table(rows: Sequence[StepCost]) -> _Table:
    cells = [
        [
            row.optimizer,
            "foreach" if row.foreach else "loop",
            row.backend,
            _number(row.peak_bytes, 1, 0),
            _number(row.allocated_bytes, 1, 0),
            _number(row.ms, 1, 2),
            row.error or _yes(row.equal),
        ]
        for row in rows
    ]
    return ["optimizer", "form", "backend", "peak, bytes", "allocated, bytes", "ms", "equal Dynamo's alone"], cells


def _scale_table(rows: Sequence[ScaleCost]) -> _Table:
    cells = [
        [
            row.family,
            f"{row.nodes:,}",
            f"{row.in_place:,}",
            _number(row.shapes_s, 1, 2),
            _number(row.pass_s, 1, 2),
            "within" if row.pass_s <= LIMIT_S else "beyond",
            _number(row.whole_s, 1, 2),
            _number(row.torch_s, 1, 2),
        ]
        for row in rows
    ]
    head = ["graph", "nodes", "in place", "shapes, s", "pass, s", f"limit {LIMIT_S:g} s", "all, s", "torch's, all, s"]
    return head, cells


def _number(value: float | None, scale: float, digits: int) -> str:
    return "-" if value is None else f"{value * scale:,.{digits}f}"


def _yes(value: bool | None) -> str:
    return "-" if value is None else "yes" if value else "no"
