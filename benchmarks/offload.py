"""Steps whose values go to a file, beside steps that only compute them again, at the same limits.

The step is that of a multilayer perceptron with SGD: its products are dear to make again, and its gradients are freed
as soon as weights are updated.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

import dovetail
from benchmarks.tables import write_tables
from dovetail.errors import MemoryLimitTooLow
from dovetail.inspect.memory import measure_peak

WIDTH, LAYERS, BATCH = 1024, 8, 2048
SHARES = (0.8, 1.0, 1.5)
_CALLS, _ROUNDS = 3, 5
_HEAD = ["limit, bytes", "way", "peak, bytes", "predicted", "written, bytes", "time, relative", "equal"]


@dataclass(frozen=True, slots=True)
class OffloadCost:
    """One step. limit_bytes, peak_bytes: above state and arguments. paired: median of times relative to eager's in the
    same round. equal: whether weights are eager's, bit by bit. None: no plan keeps the limit.
    """

    limit_bytes: int
    way: str
    peak_bytes: int | None = None
    predicted_bytes: int | None = None
    written_bytes: int | None = None
    paired: float | None = None
    equal: bool | None = None


def _made() -> tuple[nn.Module, Callable[..., torch.Tensor]]:
    torch.manual_seed(0)
    layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU())]
    model = nn.Sequential(*layers, nn.Linear(WIDTH, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return model, step


def _floor(batch: tuple[torch.Tensor, torch.Tensor]) -> int:
    """The lowest peak of the step where values are only made again."""
    try:
        dovetail.compile_step(_made()[1], memory_limit="transient:1B", keep_grads=False)(*batch)
    except MemoryLimitTooLow as error:
        return int(str(error.facts["floor_bytes"]))
    raise AssertionError("no step keeps one byte")


def measure_offload(folder: str) -> Iterator[OffloadCost]:
    """Rows for each limit, without and with a file."""
    batch = torch.randn(BATCH, WIDTH), torch.arange(BATCH) % 10
    floor = _floor(batch)
    for share in SHARES:
        for way, options in (("again", {}), ("file", {"offload": folder})):
            yield _measured(int(share * floor), way, options, batch)


def _measured(limit: int, way: str, options: dict[str, Any], batch: tuple[torch.Tensor, torch.Tensor]) -> OffloadCost:
    eager_model, eager = _made()
    model, plain = _made()
    step = dovetail.compile_step(plain, memory_limit=f"transient:{limit}B", keep_grads=False, **options)
    ratios = []
    try:
        for number in range(_CALLS + _ROUNDS):
            start = time.perf_counter()
            eager(*batch)
            middle = time.perf_counter()
            step(*batch)
            if number >= _CALLS:
                ratios.append((time.perf_counter() - middle) / (middle - start))
    except MemoryLimitTooLow:
        return OffloadCost(limit, way)
    equal = all(map(torch.equal, model.parameters(), eager_model.parameters()))
    explained = step.explain()
    written = sum(value.size_bytes for value in explained.offloaded)
    peak = measure_peak(step, *batch).peak_bytes
    return OffloadCost(limit, way, peak, explained.peak_bytes, written, statistics.median(ratios), equal)


def write_offload_report(machine: dict[str, Any], out: Path) -> None:
    """Measure, print and write the tables."""
    rows, kept = [], []
    with tempfile.TemporaryDirectory(dir=".") as folder:
        for cost in measure_offload(folder):
            row = [cost.limit_bytes, cost.way, cost.peak_bytes, cost.predicted_bytes, cost.written_bytes]
            rows.append([*map(str, row), f"{cost.paired:.2f}" if cost.paired else "no plan", str(cost.equal)])
            kept.append(asdict(cost))
    write_tables("offload", {"Values that go to a file": (_HEAD, rows)}, {"rows": kept}, machine, out)
