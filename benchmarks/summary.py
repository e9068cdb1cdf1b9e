"""Turn raw answers into the numbers that are shown: minimums, own shares and ratios."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.measure import DYNAMO, EAGER

Json = dict[str, Any]
Answers = Mapping[str, Sequence[Json]]  # by backend, one answer for each process


@dataclass(frozen=True, slots=True)
class FirstStep:
    """The first training step of one model with one backend: the least of all processes.

    Attributes:
        own_cpu_s: processor time above that of Dynamo alone: what the backend itself costs.
        cpu_ratios: `cpu_s` over that of each other backend.
        wall_ratios: `wall_s` over that of each other backend.
        own_ratios: `own_cpu_s` over that of each other backend.
        error: None, or why there are no numbers.
    """

    model: str
    backend: str
    processes: int = 0
    wall_s: float | None = None
    cpu_s: float | None = None
    own_cpu_s: float | None = None
    cpu_ratios: Mapping[str, float] | None = None
    wall_ratios: Mapping[str, float] | None = None
    own_ratios: Mapping[str, float] | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """The steady training step of one model with one backend.

    Attributes:
        wall_vs_eager: the least round over eager's least round.
        paired_vs_eager: the median over rounds of this backend's time over eager's in the same round.
        peak_vs_eager: peak memory of forward and backward over eager's.
        same_losses: whether the first losses are bitwise those of eager.
        error: None, or why there are no numbers.
    """

    model: str
    backend: str
    wall_ms: float | None = None
    wall_median_ms: float | None = None
    cpu_ms: float | None = None
    wall_vs_eager: float | None = None
    paired_vs_eager: float | None = None
    cpu_vs_eager: float | None = None
    peak_bytes: int | None = None
    peak_vs_eager: float | None = None
    same_losses: bool | None = None
    error: str | None = None


def summarize_first_steps(model: str, answers: Answers) -> list[FirstStep]:
    """Return one `FirstStep` for each backend, in the order of `answers`."""
    wall: dict[str, float] = {}
    cpu: dict[str, float] = {}
    for backend, given in answers.items():
        good = [answer for answer in given if "error" not in answer]
        if good:
            wall[backend] = min(answer["wall_s"] for answer in good)
            cpu[backend] = min(answer["cpu_s"] for answer in good)
    own = {backend: cpu[backend] - cpu[DYNAMO] for backend in cpu if DYNAMO in cpu and backend not in (EAGER, DYNAMO)}
    rows = []
    for backend, given in answers.items():
        errors = [answer["error"] for answer in given if "error" in answer]
        if backend not in wall:
            rows.append(FirstStep(model, backend, error=errors[0] if errors else "not measured"))
            continue
        rows.append(
            FirstStep(
                model,
                backend,
                processes=len(given) - len(errors),
                wall_s=wall[backend],
                cpu_s=cpu[backend],
                own_cpu_s=own.get(backend),
                cpu_ratios=_ratios(cpu, backend),
                wall_ratios=_ratios(wall, backend),
                own_ratios=_ratios(own, backend),
                error=f"{len(errors)} of {len(given)} processes failed: {errors[0]}" if errors else None,
            )
        )
    return rows


def summarize_steps(model: str, answers: Mapping[str, Json]) -> list[Step]:
    """Return one `Step` for each backend, in the order of `answers`."""
    eager = answers.get(EAGER, {"error": "not measured"})
    rows = []
    for backend, answer in answers.items():
        if "error" in answer or not answer["wall_ms"]:
            rows.append(Step(model, backend, error=answer.get("error", "no round was measured")))
            continue
        wall, cpu = answer["wall_ms"], answer["cpu_ms"]
        row: Json = {
            "wall_ms": min(wall),
            "wall_median_ms": statistics.median(wall),
            "cpu_ms": min(cpu),
            "peak_bytes": answer["peak_bytes"],
        }
        if "error" not in eager:
            pairs = zip(wall, eager["wall_ms"], strict=True)
            row |= {
                "wall_vs_eager": min(wall) / min(eager["wall_ms"]),
                "paired_vs_eager": statistics.median(ours / theirs for ours, theirs in pairs),
                "cpu_vs_eager": min(cpu) / min(eager["cpu_ms"]),
                "peak_vs_eager": answer["peak_bytes"] / max(1, eager["peak_bytes"]),
                "same_losses": answer["losses"] == eager["losses"],
            }
        rows.append(Step(model, backend, **row))
    return rows


def as_json(rows: Sequence[FirstStep] | Sequence[Step]) -> list[Json]:
    """Return the rows as plain dictionaries."""
    return [asdict(row) for row in rows]


def _ratios(values: Mapping[str, float], backend: str) -> dict[str, float] | None:
    if backend not in values:
        return None
    return {
        other: values[backend] / value for other, value in values.items() if other not in (backend, EAGER) and value > 0
    }
