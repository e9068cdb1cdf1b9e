"""What it takes to estimate, on paper, training steps of models that are larger than this machine.

The models are Llama-like, on the meta device, and trained by AdamW. Each is estimated in a process of its own, after
one of two small layers, so that what is imported once does not count.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

import dovetail
from benchmarks.nets import SwigluTransformer
from benchmarks.processes import last_line_of
from benchmarks.tables import write_tables

SHAPES = {  # layers, width, heads, inner width, vocabulary
    "1B": (22, 2048, 32, 5632, 32_000),
    "7B": (32, 4096, 32, 11_008, 32_000),
    "13B": (40, 5120, 40, 13_824, 32_000),
    "small": (2, 64, 4, 128, 256),
}
_TIME = 2048
_HEAD = ("model", "parameters, B", "peak, GB", "lowest, GB", "s", "s, with the lowest", "MB more", "MB kept")


@dataclass(frozen=True, slots=True)
class EstimateCost:
    """seconds, floor_seconds: of processor time for the estimate, and for the lowest peak after it.

    more_bytes, kept_bytes: by how much the resident memory was higher meanwhile at most, and is afterwards.
    """

    model: str
    parameters: int
    peak_bytes: int
    floor_bytes: int
    seconds: float
    floor_seconds: float
    more_bytes: int
    kept_bytes: int


def estimate_cost(model: str) -> EstimateCost:
    """Estimate one model in a process of its own."""
    return EstimateCost(**json.loads(last_line_of("estimates", model)))


def write_estimates_report(models: list[str], machine: dict[str, Any], out: Path) -> None:
    """Print the table, and write `estimates.json` and `estimates.md` into `out`."""
    rows = [estimate_cost(model) for model in models]
    cells = [
        (
            row.model,
            f"{row.parameters / 1e9:.2f}",
            f"{row.peak_bytes / 1e9:.2f}",
            f"{row.floor_bytes / 1e9:.2f}",
            f"{row.seconds:.1f}",
            f"{row.seconds + row.floor_seconds:.1f}",
            f"{row.more_bytes / 1e6:.0f}",
            f"{row.kept_bytes / 1e6:.0f}",
        )
        for row in rows
    ]
    write_tables("estimates", {"Estimates": (_HEAD, cells)}, {"rows": [asdict(row) for row in rows]}, machine, out)


def _estimated(model: str) -> tuple[int, dovetail.Estimate]:
    layers, width, heads, inner, vocabulary = SHAPES[model]
    with torch.device("meta"):
        net = SwigluTransformer(layers, width=width, heads=heads, inner=inner, vocabulary=vocabulary)
        tokens = torch.empty(1, _TIME, dtype=torch.int64)
    optimizer = torch.optim.AdamW(net.parameters())

    def step(tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = net(tokens, targets)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return sum(weight.numel() for weight in net.parameters()), dovetail.estimate(step, tokens, tokens)


def _resident(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(field))


def measure_estimate(model: str) -> EstimateCost:
    """Estimate one model in this process, after a small one."""
    small = _estimated("small")[1].floor_bytes
    assert small, "every estimate has a lowest peak"
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the highest so far is that of now
    before, start = _resident("VmRSS"), time.process_time()
    parameters, estimate = _estimated(model)
    seconds = time.process_time() - start
    floor = estimate.floor_bytes
    floor_seconds = time.process_time() - start - seconds
    more = _resident("VmHWM") - before
    gc.collect()
    kept = _resident("VmRSS") - before
    return EstimateCost(model, parameters, estimate.peak_bytes, floor, seconds, floor_seconds, more, kept)


if __name__ == "__main__":
    print(json.dumps(asdict(measure_estimate(sys.argv[1]))))
