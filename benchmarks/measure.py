"""Measure inside a fresh process: the first training step of one backend, or the steady steps of several.

`python -m benchmarks.measure REQUEST.json ANSWER.json` is how `benchmarks/processes.py` runs it. A backend that fails
is an answer like any other: `{"error": "..."}`.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import inspect
import json
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.clock import Instant, now, own_now
from benchmarks.models import Workload, build_workload, loss_of
from dovetail.inspect.memory import measure_peak

Json = dict[str, Any]

EAGER = "eager"
DYNAMO = "dynamo"
BACKENDS = (EAGER, DYNAMO, "aot_eager", "dovetail", "inductor")
_SEED = 0
_WARM_UP_STEPS = 3

# What the backends import when they are first used. Every process imports all of it beforehand, whichever backend it
# measures: with a list for each backend, one that imports late would pay for it in the timed part and another not.
_IMPORTS = (
    "dovetail.execute.native.executor",
    "llvmlite.binding",
    "torch._dynamo",
    "torch._functorch.aot_autograd",
    "torch._inductor.compile_fx",
    "torch._inductor.debug",
    "torch._inductor.pattern_matcher",
    "torch._inductor.fx_passes.joint_graph",
    "torch._inductor.fx_passes.serialized_patterns",
    "torch.distributed.tensor.experimental",
    "torch.export._trace",
    "torch.utils.cpp_extension",
    "sympy.physics.units",
    "dovetail.frontends.backend",
)

# Other kinds of request, by name: module and function. Some of these modules measure with what this one compiles.
_ELSEWHERE = {
    "decode": ("benchmarks.decode", "measure_decode"),
    "write-artifact": ("benchmarks.freeze_artifact", "write_artifact"),
    "read-artifact": ("benchmarks.freeze_artifact", "read_artifact"),
    "discarding": ("benchmarks.freeze_artifact", "measure_discarding"),
    "step-memory": ("benchmarks.step_memory", "measure_ways"),
    "step-limits": ("benchmarks.step_limits", "measure_limits"),
    "graph-memory": ("benchmarks.graph_memory", "measure_graphs"),
    "step-logging": ("benchmarks.step_logging", "measure_logging"),
    "step-capture": ("benchmarks.step_capture", "measure_capture"),
    "step-call": ("benchmarks.step_call", "measure_call"),
}


def compile_for(backend: str, model: Callable[..., Any]) -> Callable[..., Any]:
    """Return `model` to be called as `backend` runs it; `dynamo` is torch.compile with nothing behind Dynamo."""
    if backend == EAGER:
        return model
    chosen: Any = "eager" if backend == DYNAMO else backend
    if backend == "dovetail" and backend not in torch.compiler.list_backends(exclude_tags=()):
        # Run from a checkout that is not installed: there is no entry point that would name the backend.
        chosen = importlib.import_module("dovetail.frontends.backend").dovetail_backend
    # The copies of a model share their Python code. Where torch can keep the backends' compiled code apart, none tries
    # the guards of another one first.
    compile_model: Any = torch.compile
    apart = {"isolate_recompiles": True} if "isolate_recompiles" in inspect.signature(torch.compile).parameters else {}
    compiled: Callable[..., Any] = compile_model(model, backend=chosen, **apart)
    return compiled


def import_everything() -> None:
    """Import what any backend would import when it is first used."""
    for module in _IMPORTS:
        # A module that is missing in this torch is left to the backend that needs it.
        with contextlib.suppress(Exception):
            importlib.import_module(module)


def measure_first_step(model: str, backend: str, device: str) -> Json:
    """Time the first forward and backward of a freshly built model; imports and construction come before."""
    import_everything()
    workload = build_workload(model, device, _SEED)
    run = compile_for(backend, workload.model)
    gc.collect()
    torch.manual_seed(_SEED)

    modules_before = len(sys.modules)
    started = now(device)
    loss = loss_of(run(**workload.inputs))
    forward = now(device)
    loss.backward()
    passed = now(device) - started
    return {
        "wall_s": passed.wall_s,
        "cpu_s": passed.cpu_s,
        "forward_wall_s": (forward - started).wall_s,
        "loss": loss.item(),
        "late_imports": len(sys.modules) - modules_before,
    }


def measure_steps(model: str, backends: Sequence[str], device: str, rounds: int, steps_per_round: int) -> Json:
    """Time steady training steps of several backends in turn, so that a change of the machine's load meets all.

    Returns one answer for each backend, by name. Each has its own copy of the model and of the optimizer.
    """
    answers: Json = {backend: {"wall_ms": [], "cpu_ms": []} for backend in backends}
    runners: dict[str, _Runner] = {}

    def attempt(backend: str, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:
            traceback.print_exc()
            answers[backend] = {"error": describe_error(error)}
            runners.pop(backend, None)

    def start(backend: str) -> None:
        runners[backend] = _Runner(backend, build_workload(model, device, _SEED), device)
        answers[backend]["losses"] = runners[backend].warm_up()

    def time_round(backend: str) -> None:
        passed = runners[backend].run_steps(steps_per_round)
        answers[backend]["wall_ms"].append(passed.wall_s / steps_per_round * 1e3)
        answers[backend]["cpu_ms"].append(passed.cpu_s / steps_per_round * 1e3)

    def measure_memory(backend: str) -> None:
        answers[backend]["peak_bytes"] = runners[backend].peak_bytes()

    for backend in backends:
        attempt(backend, partial(start, backend))
    for number in range(rounds):
        order = [*runners]
        shift = number % max(1, len(order))
        for backend in order[shift:] + order[:shift]:
            attempt(backend, partial(time_round, backend))
    for backend in [*runners]:
        attempt(backend, partial(measure_memory, backend))
    return answers


class _Runner:
    """One backend's own model, optimizer and compiled call."""

    def __init__(self, backend: str, workload: Workload, device: str) -> None:
        self._workload = workload
        self._device = device
        self._run = compile_for(backend, workload.model)
        self._optimizer = torch.optim.AdamW(workload.model.parameters(), lr=1e-4)

    def warm_up(self) -> list[float]:
        """Run the first steps, compilation included, from the common seed, and return their losses."""
        torch.manual_seed(_SEED)
        return [self._step().item() for _ in range(_WARM_UP_STEPS)]

    def run_steps(self, count: int) -> Instant:
        """Run `count` training steps and return the time they took."""
        started = own_now(self._device)
        for _ in range(count):
            self._step()
        return own_now(self._device) - started

    def peak_bytes(self) -> int:
        """Return the exact peak of one forward and backward, above weights and optimizer state."""
        return measure_peak(self._forward_backward, device=self._device).peak_bytes

    def _step(self) -> Tensor:
        loss = self._forward_backward()
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return loss

    def _forward_backward(self) -> Tensor:
        loss = loss_of(self._run(**self._workload.inputs))
        loss.backward()
        return loss.detach()


def describe_error(error: BaseException) -> str:
    """Return one line: the kind of error and the first line of its message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"


def answer_request(request: Json) -> Json:
    """Do what one request asks for; an error becomes an answer."""
    if request.get("threads"):
        torch.set_num_threads(request["threads"])
    arguments = request["arguments"]
    try:
        if request["kind"] == "first-step":
            return measure_first_step(**arguments)
        if request["kind"] in _ELSEWHERE:
            module, function = _ELSEWHERE[request["kind"]]
            answer: Json = getattr(importlib.import_module(module), function)(**arguments)
            return answer
        return measure_steps(**arguments)
    except Exception as error:
        traceback.print_exc()
        return {"error": describe_error(error)}


def main() -> None:
    """Read the request named by the first argument, and write the answer to the second."""
    request_path, answer_path = map(Path, sys.argv[1:3])
    answer = answer_request(json.loads(request_path.read_text()))
    answer_path.write_text(json.dumps(answer))


if __name__ == "__main__":
    main()
