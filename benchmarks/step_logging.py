"""Measure what it costs to look at the loss of each step: printed by the training loop, or in the step itself."""

from __future__ import annotations

import io
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import dovetail
from benchmarks.measure import describe_error
from benchmarks.training_steps import make_training_step

Json = dict[str, Any]

_WARM_UP_STEPS = 3


@dataclass(frozen=True, slots=True)
class LoggingCost:
    """One way of running steps.

    step_us: a step that logs nothing. loop_us: `print(f"{loss.item():.4f}")` of the loss that a step returned.
    inside_us: what a step takes longer that does this itself, in a function marked `dovetail.host_call`. Medians. same:
    whether the lines are eager's.
    """

    way: str
    step_us: float | None = None
    loop_us: float | None = None
    inside_us: float | None = None
    same: bool | None = None
    error: str | None = None


def measure_logging(model: str, ways: Sequence[str], rounds: int) -> Json:
    """Time single steps of all ways in turn; one answer for each, with the lines that were printed in steps."""
    runs: dict[str, _Run] = {}
    answers: Json = {}
    for way in ways:
        try:
            runs[way] = _Run(way, model)
        except Exception as error:
            answers[way] = {"error": describe_error(error)}
    for _ in range(rounds):
        for run in runs.values():
            run.turn()
    return answers | {way: run.answer() for way, run in runs.items()}


def summarize_logging(answers: Json, eager: str) -> list[LoggingCost]:
    """Rows of the answers; lines are compared with those of `eager`."""
    wanted = answers[eager].get("lines")
    return [
        LoggingCost(way, error=answer["error"])
        if "error" in answer
        else LoggingCost(way, answer["step_us"], answer["loop_us"], answer["inside_us"], same=answer["lines"] == wanted)
        for way, answer in answers.items()
    ]


class _Run:
    """A step that is silent, and its twin that prints."""

    def __init__(self, way: str, model: str) -> None:
        self._sink, self._inner = io.StringIO(), io.StringIO()
        self._silent = make_training_step(way, model)
        self._telling = make_training_step(way, model, log=dovetail.host_call(self._log))
        self._silent_us: list[float] = []
        self._loop_us: list[float] = []
        self._telling_us: list[float] = []
        for _ in range(_WARM_UP_STEPS):
            self._silent()
            self._telling()

    def _log(self, loss: Any) -> None:
        print(f"{loss:.4f}", file=self._inner)

    def turn(self) -> None:
        """One step of each; which one is first alternates, as the second one finds warm caches."""
        if len(self._silent_us) % 2:
            self._tell()
        started = time.perf_counter_ns()
        loss = self._silent()
        stepped = time.perf_counter_ns()
        print(f"{loss.item():.4f}", file=self._sink)
        logged = time.perf_counter_ns()
        if len(self._silent_us) == len(self._telling_us):
            self._tell()
        self._silent_us.append((stepped - started) / 1e3)
        self._loop_us.append((logged - stepped) / 1e3)

    def _tell(self) -> None:
        started = time.perf_counter_ns()
        self._telling()
        self._telling_us.append((time.perf_counter_ns() - started) / 1e3)

    def answer(self) -> Json:
        """Medians, and the lines."""
        silent = statistics.median(self._silent_us)
        return {
            "step_us": silent,
            "loop_us": statistics.median(self._loop_us),
            "inside_us": statistics.median(self._telling_us) - silent,
            "lines": self._inner.getvalue().splitlines(),
        }
