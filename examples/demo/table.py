"""The demo's numbers as text: one list of rows for the terminal and for the page."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.table import Table

from demo.train import EAGER, Column

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: a label and one cell for each column."""

    label: str
    cells: tuple[str, ...]


def table_rows(columns: Sequence[Column]) -> list[Row]:
    """Return the rows to show, with each time and size set against eager's."""
    eager = columns[0]

    def row(label: str, cell: Callable[[Column], str]) -> Row:
        return Row(label, tuple("failed" if column.failure else cell(column) for column in columns))

    return [
        row("first step, compilation included", lambda c: f"{c.first_step_seconds:.2f} s"),
        row("median step", lambda c: f"{c.median_step_ms:.1f} ms{_time_ratio(c, eager)}"),
        row("half of the steps took", lambda c: "{:.1f} to {:.1f} ms".format(*c.quartiles_ms)),
        row("peak memory of a step", lambda c: f"{c.peak_bytes / _MIB:.1f} MiB{_peak_ratio(c, eager)}"),
        row("final loss", lambda c: f"{c.losses[-1]:.6f}"),
        row("losses bitwise equal to eager's", lambda c: _equal(c, c.losses == eager.losses)),
        row("weights bitwise equal to eager's", lambda c: _equal(c, c.weights_digest == eager.weights_digest)),
    ]


def verdicts(columns: Sequence[Column]) -> list[str]:
    """Return what is to be said of each column but eager's: does it compute what eager computes, and how fast?"""
    eager = columns[0]
    sentences: list[str] = []
    for column in columns[1:]:
        sentences.append(_verdict(column, eager))
        if not column.failure:
            sentences.append(_time_verdict(column, eager))
    return sentences


def render_table(columns: Sequence[Column]) -> Table:
    """Return the rows as a rich table."""
    table = Table(title="Training a small GPT on Python's standard library")
    table.add_column("")
    for column in columns:
        table.add_column(column.name, justify="right", style="bold" if column is columns[1] else None)
    for row in table_rows(columns):
        table.add_row(row.label, *row.cells)
    return table


def _time_ratio(column: Column, eager: Column) -> str:
    return "" if column.name == EAGER else f" ({column.time_ratio(eager).median:.2f}x)"


def _peak_ratio(column: Column, eager: Column) -> str:
    return "" if column.name == EAGER or not eager.peak_bytes else f" ({column.peak_bytes / eager.peak_bytes:.2f}x)"


def _time_verdict(column: Column, eager: Column) -> str:
    ratio = column.time_ratio(eager)
    if math.isinf(ratio.high):
        return f"{column.name}: {ratio.pairs} pairs of steps are too few to compare times."
    interval = f"between {ratio.low:.2f}x and {ratio.high:.2f}x (95 % confidence, {ratio.pairs} pairs of steps)"
    if not ratio.is_telling:
        return f"{column.name}: the machine was too noisy to tell the times apart: a step takes {interval} of eager's."
    return f"{column.name}: a step takes {ratio.median:.2f}x eager's time, {interval}."


def _equal(column: Column, is_equal: bool) -> str:
    if column.name == EAGER:
        return "reference"
    return "yes" if is_equal else "no"


def _verdict(column: Column, eager: Column) -> str:
    if column.failure:
        return f"{column.name}: failed. {column.failure}"
    if column.losses == eager.losses:
        also = "and the final weights " if column.weights_digest == eager.weights_digest else ""
        return f"{column.name}: all {len(column.losses)} losses {also}are bitwise equal to eager's."
    pairs = list(zip(column.losses, eager.losses, strict=True))
    first = next(step for step, (ours, theirs) in enumerate(pairs, start=1) if ours != theirs)
    largest = max(abs(ours - theirs) for ours, theirs in pairs)
    return f"{column.name}: losses differ from eager's from step {first} on; the largest difference is {largest:.2g}."
