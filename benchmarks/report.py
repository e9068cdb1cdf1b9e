"""Show results: a table for the terminal, the same one as markdown, a plot, and everything as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from benchmarks.measure import EAGER
from benchmarks.summary import FirstStep, Step, as_json

Json = dict[str, Any]

_MIB = 1 << 20
_WIDTH_IN_A_FILE = 150
_COLORS = {
    "eager": "#5b6770",
    "dynamo": "#a7b0b7",
    "aot_eager": "#2e86ab",
    "dovetail": "#d1495b",
    "inductor": "#edae49",
}
_FIRST_STEP_HEAD = (
    "model", "backend", "wall s", "cpu s", "own cpu s", "cpu / aot_eager", "cpu / inductor",
    "wall / inductor", "own / aot_eager", "own / inductor",
)  # fmt: skip
_STEP_HEAD = (
    "model", "backend", "wall ms", "median ms", "cpu ms", "wall / eager", "paired / eager", "cpu / eager",
    "peak MiB", "peak / eager", "eager's losses",
)  # fmt: skip
_NOTES = {
    "first-step": (
        "First forward and backward in a fresh process with empty caches; model construction and the same list of "
        "imports for every backend excluded. "
        "Least of all processes. cpu: user and system time, child processes included. own: cpu above that of "
        "`dynamo`, which is torch.compile with nothing behind Dynamo."
    ),
    "step": (
        "Forward, backward and AdamW (outside the compiled region), all backends in turn in one process. "
        "wall, cpu: least round. paired: median over rounds of the ratio within a round. peak: forward and backward, "
        "above weights and optimizer state, exact. eager's losses: whether the first losses are bitwise equal."
    ),
}


def write_report(kind: str, rows: Sequence[FirstStep] | Sequence[Step], record: Json, out: Path) -> None:
    """Print the table, and write `<kind>.json`, `<kind>.md` and `<kind>.png` into `out`.

    Args:
        kind: "first-step" or "step".
        rows: one for each model and backend.
        record: machine, settings and raw answers, kept in the JSON file beside the rows.
        out: a folder; made if need be.
    """
    out.mkdir(parents=True, exist_ok=True)
    head = _FIRST_STEP_HEAD if kind == "first-step" else _STEP_HEAD
    cells = [_first_step_cells(row) if isinstance(row, FirstStep) else _step_cells(row) for row in rows]
    failures = [f"{row.model}, {row.backend}: {row.error}" for row in rows if row.error]

    (out / f"{kind}.json").write_text(json.dumps({"kind": kind, **record, "rows": as_json(rows)}, indent=1) + "\n")
    (out / f"{kind}.md").write_text(_markdown(kind, head, cells, failures, record["machine"]))
    _draw(rows, out / f"{kind}.png")

    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDTH_IN_A_FILE)
    console.print(_rich_table(kind, head, cells))
    for failure in failures:
        console.print(failure, markup=False)
    console.print(f"written: {out / kind}.json, .md, .png", markup=False, soft_wrap=True)


def _first_step_cells(row: FirstStep) -> list[str]:
    cpu, wall, own = row.cpu_ratios or {}, row.wall_ratios or {}, row.own_ratios or {}
    return [
        row.model,
        row.backend,
        _number(row.wall_s),
        _number(row.cpu_s),
        _number(row.own_cpu_s),
        _number(cpu.get("aot_eager"), 3),
        _number(cpu.get("inductor"), 3),
        _number(wall.get("inductor"), 3),
        _number(own.get("aot_eager"), 3),
        _number(own.get("inductor"), 3),
    ]


def _step_cells(row: Step) -> list[str]:
    return [
        row.model,
        row.backend,
        _number(row.wall_ms, 1),
        _number(row.wall_median_ms, 1),
        _number(row.cpu_ms, 1),
        _number(row.wall_vs_eager, 3),
        _number(row.paired_vs_eager, 3),
        _number(row.cpu_vs_eager, 3),
        _number(None if row.peak_bytes is None else row.peak_bytes / _MIB, 1),
        _number(row.peak_vs_eager, 4),
        "" if row.same_losses is None else "yes" if row.same_losses else "no",
    ]


def _number(value: float | None, digits: int = 2) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _rich_table(kind: str, head: Sequence[str], cells: Sequence[Sequence[str]]) -> Table:
    table = Table(title=kind)
    for place, label in enumerate(head):
        table.add_column(label, justify="left" if place < 2 else "right")
    for number, line in enumerate(cells):
        is_last_of_model = number + 1 == len(cells) or cells[number + 1][0] != line[0]
        style = "bold" if line[1] == "dovetail" else None
        table.add_row(*line, style=style, end_section=is_last_of_model)
    return table


def _markdown(
    kind: str, head: Sequence[str], cells: Sequence[Sequence[str]], failures: Sequence[str], machine: Mapping[str, Any]
) -> str:
    load = ", ".join(f"{value:.1f}" for value in machine["load_average"])
    device = machine.get("gpu", machine["device"])
    lines = [
        f"# {kind}",
        "",
        _NOTES[kind],
        "",
        f"{machine['date']}; {machine['processor']}, {machine['usable_cores']} cores, "
        f"{machine['torch_threads']} threads; torch {machine['torch']}; device {device}; "
        f"load average {load}.",
        "",
        "| " + " | ".join(head) + " |",
        "|" + "|".join(" --- " if place < 2 else " ---: " for place in range(len(head))) + "|",
        *("| " + " | ".join(line) + " |" for line in cells),
    ]
    if failures:
        lines += ["", "Failed:", "", *(f"- {failure}" for failure in failures)]
    return "\n".join(lines) + "\n"


def _draw(rows: Sequence[FirstStep] | Sequence[Step], path: Path) -> None:
    models = list(dict.fromkeys(row.model for row in rows))
    if rows and isinstance(rows[0], FirstStep):
        panels = [("cpu_s", "First step: processor seconds"), ("wall_s", "First step: wall seconds")]
    else:
        panels = [("wall_vs_eager", "Step time over eager's"), ("peak_vs_eager", "Peak memory over eager's")]
    figure = Figure(figsize=(13, 4.2), layout="constrained")
    for axes, (field, title) in zip(figure.subplots(1, len(panels)), panels, strict=True):
        _draw_bars(axes, models, rows, field)
        axes.set_title(title)
        if field.endswith("_s"):
            axes.set_yscale("log")
        else:
            axes.axhline(1.0, color=_COLORS[EAGER], linewidth=1)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside lower center", ncols=len(handles), frameon=False)
    figure.savefig(path, dpi=110)


def _draw_bars(axes: Any, models: Sequence[str], rows: Sequence[FirstStep] | Sequence[Step], field: str) -> None:
    shown = [row for row in rows if getattr(row, field) is not None]
    backends = list(dict.fromkeys(row.backend for row in shown))
    width = 0.8 / max(1, len(backends))
    for number, backend in enumerate(backends):
        mine = [row for row in shown if row.backend == backend]
        places = [models.index(row.model) + (number - (len(backends) - 1) / 2) * width for row in mine]
        heights = [getattr(row, field) for row in mine]
        bars = axes.bar(places, heights, width=width, label=backend, color=_COLORS.get(backend))
        axes.bar_label(bars, fmt="%.2f", fontsize=7)
    axes.set_xticks(range(len(models)), models)
    axes.spines[["top", "right"]].set_visible(False)
