"""Measure what it takes to make a program of a whole training step: processor time of the first calls, next to eager.

The first call captures, compiles and runs; so does the second one where the first one leaves another state. Later ones
only run.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.clock import Instant, own_now
from benchmarks.measure import import_everything
from benchmarks.step_stages import stages_timed
from benchmarks.training_steps import make_training_step
from dovetail.frontends.step.step import CompiledStep

Json = dict[str, Any]

LIMIT_S = 5.0
"""Processor seconds to capture and compile the step of GPT-2 with 12 layers and AdamW."""

_LATER_STEPS = 5


@dataclass(frozen=True, slots=True)
class CaptureCost:
    """The first steps of one model, run one way. Processor seconds, least of all processes.

    first_s, second_s, later_s: of a step. capture_s: what of them was spent capturing and compiling, as the
    compiled step tells. stages: what of that each stage took, and the rest. nodes: of the program that runs.
    """

    model: str
    way: str
    first_s: float | None = None
    second_s: float | None = None
    later_s: float | None = None
    capture_s: float | None = None
    nodes: int | None = None
    stages: dict[str, float] | None = None
    error: str | None = None


def measure_capture(model: str, way: str) -> Json:
    """Time the first steps, one by one. Imports and construction come before."""
    import_everything()
    step = make_training_step(way, model)
    gc.collect()
    passed: list[Instant] = []
    with stages_timed() as stages:
        for _ in range(2 + _LATER_STEPS):
            started = own_now()
            step()
            passed.append(own_now() - started)
    answer: Json = {
        "first_s": passed[0].cpu_s,
        "second_s": passed[1].cpu_s,
        "later_s": statistics.median(instant.cpu_s for instant in passed[2:]),
    }
    if isinstance(step.run, CompiledStep):
        seconds = step.run.stats.seconds
        answer |= {
            "capture_s": seconds,
            "nodes": len(step.run.program.nodes),
            "stages": {**stages, "rest": seconds - sum(stages.values())},
        }
    return answer


def summarize_capture(model: str, way: str, answers: Sequence[Json]) -> CaptureCost:
    """The answer of the process whose first two steps took the least time."""
    good = [answer for answer in answers if "error" not in answer]
    if not good:
        return CaptureCost(model, way, error=answers[0]["error"])
    return CaptureCost(model, way, **min(good, key=lambda answer: answer["first_s"] + answer["second_s"]))
