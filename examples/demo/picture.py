"""Draw the demo's picture: the losses, the memory of one step over time, and its peak."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from demo.train import Column

_MIB = 1 << 20
_COLORS = ("#5b6770", "#d1495b", "#2e86ab", "#edae49", "#3c896d")
_LINES = ("-", "--", ":", "-.")
_MAX_POINTS = 4000
_SMALLEST_SHOWN_BYTES = 4096


def draw_picture(columns: Sequence[Column]) -> bytes:
    """Return the picture of all columns that did not fail, as the bytes of a PNG file."""
    shown = [column for column in columns if column.failure is None]
    figure = Figure(figsize=(14, 4.2), layout="constrained")
    loss_axes, time_axes, peak_axes = figure.subplots(1, 3, width_ratios=(4, 4, 2))
    _draw_losses(loss_axes, shown)
    _draw_memory_over_time(time_axes, shown)
    _draw_peaks(peak_axes, shown)
    for axes in (loss_axes, time_axes, peak_axes):
        axes.spines[["top", "right"]].set_visible(False)
    target = io.BytesIO()
    figure.savefig(target, format="png", dpi=110)
    return target.getvalue()


def _draw_losses(axes: Any, columns: Sequence[Column]) -> None:
    # Equal curves lie on top of each other: the later ones are thinner and broken, so that all can be seen.
    for place, column in enumerate(columns):
        axes.plot(
            range(1, len(column.losses) + 1),
            column.losses,
            label=column.name,
            color=_COLORS[place % len(_COLORS)],
            linestyle=_LINES[place % len(_LINES)],
            linewidth=max(1.2, 4.0 - 1.6 * place),
        )
    axes.set(title="Loss", xlabel="step", ylabel="cross-entropy per byte (nats)")
    axes.legend(frameon=False)


def _draw_memory_over_time(axes: Any, columns: Sequence[Column]) -> None:
    for place, column in enumerate(columns):
        levels = _thin_out(_without_crumbs(column.live_bytes))
        scale = 100 / max(1, len(levels) - 1)
        axes.plot(
            [index * scale for index in range(len(levels))],
            [level / _MIB for level in levels],
            label=column.name,
            color=_COLORS[place % len(_COLORS)],
            linewidth=1.2,
        )
    axes.set(
        title="Memory of one step",
        xlabel="allocator events of 4 KiB and more (%)",
        ylabel="live MiB above weights and state",
    )
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)


def _draw_peaks(axes: Any, columns: Sequence[Column]) -> None:
    names = [column.name for column in columns]
    heights = [column.peak_bytes / _MIB for column in columns]
    bars = axes.bar(names, heights, color=[_COLORS[place % len(_COLORS)] for place in range(len(columns))], width=0.6)
    axes.bar_label(bars, fmt="%.1f")
    axes.set(title="Peak of one step", ylabel="MiB above weights and state")


def _without_crumbs(levels: Sequence[int]) -> list[int]:
    """Drop levels next to the last one kept: the many scalars of an optimizer would fill half of the axis."""
    kept: list[int] = [0]
    for level in levels:
        if abs(level - kept[-1]) >= _SMALLEST_SHOWN_BYTES:
            kept.append(level)
    return kept


def _thin_out(levels: Sequence[int]) -> list[int]:
    """Keep the highest level of each run of neighbours, so that a long history stays drawable and keeps its peak."""
    run = max(1, -(-len(levels) // _MAX_POINTS))
    return [max(levels[start : start + run]) for start in range(0, len(levels), run)]
