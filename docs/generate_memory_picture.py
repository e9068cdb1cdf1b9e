"""Measure the memory of one training step, eager and compiled, and draw docs/images/memory.svg.

python docs/generate_memory_picture.py

The model is six blocks of (linear 256-512, GELU, linear 512-256) with AdamW and a batch of 64. Every block that the
allocator hands out is counted, so the curves are exact and the same in every run.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

import dovetail
from dovetail.inspect.memory import PeakReport, measure_peak

PICTURE = Path(__file__).resolve().parent / "images" / "memory.svg"

_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 760, 300, 64, 48, 40
_MB = 1_000_000
_CRUMB_BYTES = 4096
_CURVES = (("eager", "#d1495b"), ("dovetail", "#2e86ab"))


def measure(compile_it: Callable[[Callable[[Tensor], Tensor]], Callable[[Tensor], Tensor]]) -> PeakReport:
    """The memory of one warm training step above weights and optimizer state, run in the given way."""
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256)) for _ in range(6)]
    model = nn.Sequential(*blocks)
    optimizer = torch.optim.AdamW(model.parameters())

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    run = compile_it(step)
    x = torch.randn(64, 256)
    for _ in range(3):
        run(x)
    optimizer.zero_grad()
    return measure_peak(run, x)


def draw(reports: Sequence[PeakReport]) -> str:
    """The curves of live memory over a step as SVG; each curve is stretched to the full width."""
    top = max(report.peak_bytes for report in reports) * 1.08
    bottom_y = _HEIGHT - _BOTTOM

    def y_of(size: float) -> float:
        return bottom_y - (bottom_y - _TOP) * size / top

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="system-ui, sans-serif" '
        f'font-size="13" role="img" aria-label="Memory over one training step, eager and dovetail">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
        f'<text x="{_LEFT}" y="22" fill="#222222" font-size="15">Memory of one training step, above weights and '
        "optimizer state (MB)</text>",
    ]
    for megabytes in range(0, int(top / _MB) + 1, 2):
        y = y_of(megabytes * _MB)
        parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH - 110}" y1="{y:.1f}" y2="{y:.1f}" stroke="#dddddd"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end" fill="#555555">{megabytes}</text>')
    for (name, color), report in zip(_CURVES, reports, strict=True):
        levels = _without_crumbs(report.live_bytes)
        scale = (_WIDTH - 110 - _LEFT) / max(1, len(levels) - 1)
        points = " ".join(f"{_LEFT + i * scale:.1f},{y_of(level):.1f}" for i, level in enumerate(levels))
        label_y = y_of(report.peak_bytes)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"/>')
        parts.append(
            f'<line x1="{_LEFT}" x2="{_WIDTH - 110}" y1="{label_y:.1f}" y2="{label_y:.1f}" stroke="{color}" '
            f'stroke-dasharray="3 4"/><text x="{_WIDTH - 104}" y="{label_y + 4:.1f}" fill="{color}">'
            f"{name} {report.peak_bytes / _MB:.1f}</text>"
        )
    middle = (_LEFT + _WIDTH - 110) / 2
    parts.append(
        f'<text x="{middle}" y="{_HEIGHT - 12}" text-anchor="middle" fill="#555555">'
        "forward, backward, optimizer: one step from start to end</text></svg>"
    )
    return "\n".join(parts) + "\n"


def _without_crumbs(levels: Sequence[int]) -> list[int]:
    """Levels that differ visibly from the one before."""
    kept = [0]
    for level in levels:
        if abs(level - kept[-1]) >= _CRUMB_BYTES:
            kept.append(level)
    return kept


def main() -> int:
    """Measure, draw and print the peaks."""
    reports = [measure(lambda step: step), measure(partial(dovetail.compile_step, keep_grads=False))]
    PICTURE.write_text(draw(reports), encoding="utf-8")
    for (name, _), report in zip(_CURVES, reports, strict=True):
        print(f"{name}: {report.peak_bytes:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
