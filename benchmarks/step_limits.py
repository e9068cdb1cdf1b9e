"""Measure whole training steps under limits from the lowest peak that is found up to the one without a limit.

Each limit has a model, an optimizer and a step of its own, from a seed of its own. The peak of each measured call, the
first included, is a total: what is held when it begins, and the highest number of bytes live above that.
"""

from __future__ import annotations

import hashlib
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import dovetail
from benchmarks.models import Workload, build_workload
from benchmarks.tables import Rows, write_tables
from benchmarks.training_steps import usual_step
from dovetail.errors import MemoryLimitTooLow
from dovetail.inspect.memory import measure_peak

Json = dict[str, Any]

_CALLS = 3
_SEEDS = 10
_MB = 1e6


@dataclass(frozen=True, slots=True)
class LimitRow:
    """One limit of the step of one model.

    limit_bytes, first_peak_bytes, peak_bytes, predicted_bytes: totals. peak_bytes: the highest of the calls after the
    first. predicted_bytes: what the step says of its later calls. eager_bytes: the peak of eager's warm step, a total.
    paired: median of the ratios of a step's time to eager's. equal: whether losses, weights, buffers, optimizer state
    and random numbers are eager's, bit by bit.
    """

    model: str
    seed: int
    limit_bytes: int
    first_peak_bytes: int
    peak_bytes: int
    predicted_bytes: int
    eager_bytes: int
    paired: float
    equal: bool

    @property
    def kept(self) -> bool:
        """Whether no call took more than the limit."""
        return max(self.first_peak_bytes, self.peak_bytes) <= self.limit_bytes


@dataclass(slots=True)
class _Training:
    """One way of training, and what is seen of it."""

    workload: Workload
    optimizer: torch.optim.Optimizer
    step: Callable[[dict[str, Tensor]], Tensor]
    peaks: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    digest: Any = field(default_factory=hashlib.sha256)

    def held_tensors(self) -> list[Tensor]:
        """Weights, buffers, optimizer state and arguments."""
        state = [value for entry in self.optimizer.state.values() for value in entry.values()]
        found = [*self.workload.model.state_dict().values(), *state, *self.workload.inputs.values()]
        return [value for value in found if isinstance(value, Tensor)]

    def held_bytes(self) -> int:
        """The bytes of the storages of held tensors, and of gradients that are still there."""
        tensors = [*self.held_tensors(), *(p.grad for p in self.workload.model.parameters() if p.grad is not None)]
        return sum({t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}.values())

    def measure(self, number: int) -> None:
        """Run a call whose peak is measured."""
        torch.manual_seed(number)
        held = self.held_bytes()
        report = measure_peak(self.step, self.workload.inputs)
        self.peaks.append(held + report.peak_bytes)
        self._note(report.result)

    def time(self, number: int) -> None:
        """Run a call that is timed."""
        torch.manual_seed(number)
        started = time.perf_counter()
        loss = self.step(self.workload.inputs)
        self.seconds.append(time.perf_counter() - started)
        self._note(loss)

    def end(self) -> str:
        """The digest of all losses and random numbers, and of what is held in the end."""
        for tensor in self.held_tensors():
            self._note(tensor)
        return str(self.digest.hexdigest())

    def _note(self, tensor: Tensor) -> None:
        for value in (tensor.detach().contiguous(), torch.get_rng_state()):
            self.digest.update(value.reshape(-1).view(torch.uint8).numpy().tobytes())


def measure_limits(model: str, limits: int, rounds: int) -> Json:
    """Measure one model, with limits at equal distances."""
    # Operators are measured before: not while a call is.
    lowest, free = _peak_of(model, "1B"), _peak_of(model, None)
    rows = []
    for number in range(limits):
        limit = lowest + (free - lowest) * number // max(1, limits - 1)
        rows.append(asdict(_measure_limit(model, limit, number % _SEEDS, rounds)))
    return {"rows": rows}


def _peak_of(model: str, limit: str | None) -> int:
    """The total peak of a step with a limit; where that is too low, the lowest on offer."""
    training = _start(model, 0, memory_limit=limit)
    try:
        for _ in range(_CALLS):
            training.step(training.workload.inputs)
    except MemoryLimitTooLow as error:
        return int(str(error.facts["floor_bytes"]))
    explained = training.step.explain()  # type: ignore[attr-defined]
    return int(explained.peak_bytes + explained.state_bytes)


def _measure_limit(model: str, limit: int, seed: int, rounds: int) -> LimitRow:
    eager, limited = _start(model, seed), _start(model, seed, memory_limit=limit)
    for number in range(_CALLS):
        for training in (eager, limited):
            training.measure(number)
    for number in range(rounds):
        for training in (eager, limited):
            training.time(_CALLS + number)
    explained = limited.step.explain()  # type: ignore[attr-defined]
    return LimitRow(
        model=model,
        seed=seed,
        limit_bytes=limit,
        first_peak_bytes=limited.peaks[0],
        peak_bytes=max(limited.peaks[1:]),
        predicted_bytes=int(explained.run_bytes + explained.state_bytes),
        eager_bytes=eager.peaks[-1],
        paired=statistics.median(a / b for a, b in zip(limited.seconds, eager.seconds, strict=True)),
        equal=eager.end() == limited.end(),
    )


def _start(model: str, seed: int, **options: Any) -> _Training:
    """A fresh model with its step, compiled where there are options."""
    workload = build_workload(model, "cpu", seed)
    step, optimizer = usual_step(workload.model)
    chosen = dovetail.compile_step(step, keep_grads=False, **options) if options else step
    return _Training(workload, optimizer, chosen)


def write_limits_report(answers: Sequence[Json], machine: Json, settings: Json, out: Path) -> None:
    """Print the tables, and write `step-limits.json` and `step-limits.md` into `out`, made if need be."""
    rows = [LimitRow(**row) for answer in answers for row in answer.get("rows", ())]
    failures = [answer for answer in answers if "error" in answer]
    by_model = {model: [row for row in rows if row.model == model] for model in dict.fromkeys(r.model for r in rows)}
    tables = {
        "Limits that are kept, and bits that are eager's": _summary(by_model),
        "Total peaks under each limit, MB": _details(rows),
    }
    if failures:
        tables["Not measured"] = ["model", "why"], [[answer["model"], answer["error"]] for answer in failures]
    write_tables(
        "step-limits",
        tables,
        {"settings": settings, "rows": [asdict(r) for r in rows], "failures": failures},
        machine,
        out,
    )


def _summary(by_model: dict[str, list[LimitRow]]) -> tuple[list[str], Rows]:
    cells = []
    for model, rows in by_model.items():
        peaks = [row.peak_bytes for row in rows]
        cells.append(
            [
                model,
                str(len(rows)),
                f"{sum(row.kept for row in rows)}",
                f"{sum(row.equal for row in rows)}",
                f"{sum(row.peak_bytes == row.predicted_bytes for row in rows)}",
                "yes" if peaks == sorted(peaks) else "no",
                f"{rows[0].limit_bytes / rows[0].eager_bytes:.3f} ({rows[0].paired:.2f})",
                f"{rows[-1].limit_bytes / rows[-1].eager_bytes:.3f} ({rows[-1].paired:.2f})",
            ]
        )
    head = [
        "model",
        "limits",
        "kept",
        "eager's bits",
        "peak as predicted",
        "monotone",
        "lowest / eager (time)",
        "highest",
    ]
    return head, cells


def _details(rows: Sequence[LimitRow]) -> tuple[list[str], Rows]:
    cells = [
        [
            row.model,
            *(f"{b / _MB:.3f}" for b in (row.limit_bytes, row.first_peak_bytes, row.peak_bytes, row.predicted_bytes)),
            f"{row.peak_bytes / row.eager_bytes:.3f}",
            f"{row.paired:.2f}",
            "yes" if row.equal else "no",
        ]
        for row in rows
    ]
    return ["model", "limit", "call 1", "later", "predicted", "/ eager", "time / eager", "eager's bits"], cells
