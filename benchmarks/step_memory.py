"""Measure whole training steps, one way of running them beside the other: exact peaks, step times, and equal bits.

A peak is the highest number of bytes live in one warm step above weights, buffers and optimizer state, from the
allocator's events (`dovetail.inspect.memory`). Eager's gradients of the step before are cleared first thing in the
step, so they count for no way.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from benchmarks.clock import own_now
from benchmarks.measure import EAGER, describe_error
from benchmarks.processes import ROOT, ask_fresh_process, keep_to_processors
from benchmarks.training_steps import (
    BUDGETS,
    HOOKS,
    INDUCTOR,
    JAX,
    JAX_CHECKPOINT,
    SEED,
    TrainingStep,
    make_training_step,
)
from dovetail.frontends.step.step import CompiledStep
from dovetail.inspect.memory import measure_peak

Json = dict[str, Any]

NO_COMPILER = "not available: no C++ compiler"
JAX_PYTHON = "JAX_PYTHON"
NO_JAX = f"not available: {JAX_PYTHON} names no Python that has JAX"
_JAX_LAYERS = {"gpt2-4": 4, "gpt2-12": 12}
"""Models of which JAX has a network like them."""
_WARM_UP_STEPS = 3
"""The first one makes the optimizer's state, and in the second one dovetail captures."""


@dataclass(frozen=True, slots=True)
class StepMemory:
    """One way of running the step of one model.

    peak_bytes: of a warm step. predicted_bytes: what the compiled step says of it beforehand. end_bytes: what is live
    after the step, gradients say. ms: median of the rounds.
    paired: median over rounds of the ratio to eager within a round, with its quartiles. equal: whether the losses of
    all steps and the weights in the end are eager's, bit by bit. error: why there are no figures.
    """

    model: str
    clip: bool
    way: str
    peak_bytes: int | None = None
    peak_vs_eager: float | None = None
    predicted_bytes: int | None = None
    end_bytes: int | None = None
    ms: float | None = None
    paired: float | None = None
    quartiles: tuple[float, float] | None = None
    equal: bool | None = None
    error: str | None = None


def measure_ways(
    model: str, ways: Sequence[str], clip: bool, rounds: int, steps_per_round: int, device: str = "cpu"
) -> Json:
    """Run the steps of several ways in turn, so that a change of the machine's load meets all; one answer for each."""
    answers: Json = {way: {"losses": [], "wall_ms": []} for way in ways}
    steps: dict[str, TrainingStep] = {}

    def attempt(way: str, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:
            traceback.print_exc()
            answers[way] = {"error": describe_error(error)}
            steps.pop(way, None)

    def run(way: str, count: int) -> None:
        # Each way draws what the others draw.
        torch.manual_seed(SEED + len(answers[way]["losses"]))
        answers[way]["losses"] += [float(steps[way]()) for _ in range(count)]

    def start(way: str) -> None:
        steps[way] = make_training_step(way, model, clip=clip, device=device)
        run(way, _WARM_UP_STEPS)

    def time_round(way: str) -> None:
        started = own_now(device)
        run(way, steps_per_round)
        answers[way]["wall_ms"].append((own_now(device) - started).wall_s / steps_per_round * 1e3)

    def finish(way: str) -> None:
        answers[way]["digest"] = steps[way].digest()
        report = measure_peak(steps[way], device=device)
        answers[way] |= {"peak_bytes": report.peak_bytes, "end_bytes": report.end_bytes}
        compiled = steps[way].run
        if isinstance(compiled, CompiledStep):
            answers[way]["predicted_bytes"] = compiled.explain().run_bytes

    for way in ways:
        attempt(way, partial(start, way))
    for number in range(rounds):
        order = [*steps]
        shift = number % max(1, len(order))
        for way in order[shift:] + order[:shift]:
            attempt(way, partial(time_round, way))
    for way in [*steps]:
        attempt(way, partial(finish, way))
    return answers


def ask_for_ways(
    model: str,
    ways: Sequence[str],
    *,
    clip: bool,
    rounds: int,
    steps_per_round: int,
    threads: int,
    timeout_s: float,
    device: str = "cpu",
) -> Json:
    """Measure in fresh processes: one for each way through Dynamo, with eager beside it, one for each of JAX, and one
    for all others.

    Times of Dynamo's ways are compared with the eager of their own process. Where there is no C++ compiler or no JAX,
    or where one gives up, the way's answer is an error.
    """
    turns = {"rounds": rounds, "steps_per_round": steps_per_round}
    arguments = {"model": model, "clip": clip, "device": device, **turns}

    def ask(chosen: Sequence[str]) -> Json:
        answer = ask_fresh_process("step-memory", {**arguments, "ways": chosen}, threads=threads, timeout_s=timeout_s)
        return dict.fromkeys(chosen, answer) if "error" in answer else answer

    by_dynamo = [way for way in ways if way in (INDUCTOR, *BUDGETS)]
    by_jax = [way for way in ways if way in (JAX, JAX_CHECKPOINT)]
    answers = ask([way for way in ways if way not in (*by_dynamo, *by_jax) and not (clip and way == HOOKS)])
    for way in by_dynamo:
        if way == INDUCTOR and not has_cpp_compiler():
            answers[way] = {"error": NO_COMPILER}
            continue
        beside = ask([EAGER, way])
        answers[way] = beside[way]
        if "error" not in beside[EAGER] and "error" not in answers[way]:
            answers[way]["eager"] = beside[EAGER]
    for way in by_jax if model in _JAX_LAYERS and not clip else ():
        answers[way] = _ask_jax(_JAX_LAYERS[model], way, rounds * steps_per_round, threads, timeout_s)
    return answers


def _ask_jax(layers: int, way: str, calls: int, threads: int, timeout_s: float) -> Json:
    """Measure a network of JAX. Its peak is what XLA says that the step needs beside its arguments."""
    python = os.environ.get(JAX_PYTHON)
    if python is None:
        return {"error": NO_JAX}
    command = [
        python,
        str(ROOT / "benchmarks" / "jax_worker.py"),
        f"--layers={layers}",
        f"--calls={calls + _WARM_UP_STEPS}",
    ]
    command += ["--checkpoint"] if way == JAX_CHECKPOINT else []
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    pipe = subprocess.PIPE
    try:
        with subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True) as process:
            keep_to_processors(process, threads)
            try:
                answer, _ = process.communicate(timeout=timeout_s)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, command)
    except (OSError, subprocess.SubprocessError) as error:
        return {"error": describe_error(error)}
    found = json.loads(answer)
    return {"peak_bytes": found["temporary_bytes"], "wall_ms": found["wall_ms"][_WARM_UP_STEPS:]}


def has_cpp_compiler() -> bool:
    """Whether inductor would find a compiler: the one that CXX names, or g++."""
    return shutil.which(os.environ.get("CXX") or "g++") is not None


def summarize_ways(model: str, clip: bool, answers: Json) -> list[StepMemory]:
    """Rows of the answers, each compared with eager."""
    rows = []
    for way, answer in answers.items():
        if "error" in answer:
            rows.append(StepMemory(model, clip, way, error=answer["error"]))
            continue
        eager = answer.get("eager") or answers.get(EAGER, {"error": "not measured"})
        row: Json = {
            "peak_bytes": answer["peak_bytes"],
            "predicted_bytes": answer.get("predicted_bytes"),
            "end_bytes": answer.get("end_bytes"),
            "ms": statistics.median(answer["wall_ms"]),
        }
        if way in (JAX, JAX_CHECKPOINT) and "error" not in eager:  # another process, another time
            row |= {
                "peak_vs_eager": answer["peak_bytes"] / eager["peak_bytes"],
                "paired": row["ms"] / statistics.median(eager["wall_ms"]),
            }
        elif "error" not in eager:
            ratios = [mine / its for mine, its in zip(answer["wall_ms"], eager["wall_ms"], strict=True)]
            low, _, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
            row |= {
                "peak_vs_eager": answer["peak_bytes"] / eager["peak_bytes"],
                "paired": statistics.median(ratios),
                "quartiles": (low, high),
                "equal": (answer["losses"], answer["digest"]) == (eager["losses"], eager["digest"]),
            }
        rows.append(StepMemory(model, clip, way, **row))
    return rows
