"""Measure what a call of a compiled step costs beyond its program: guards, snapshots, and numbers read and written.

The clock runs around each call and, within it, around the program. What is left between them is the call's own.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from benchmarks.measure import EAGER
from benchmarks.training_steps import DOVETAIL, make_training_step
from dovetail.execute.compiled import CompiledProgram

Json = dict[str, Any]

LIMIT_SHARE = 0.02
"""What a call may cost beyond its program, of a step that takes about 10 ms."""

_WARM_UP_STEPS = 5


@dataclass(frozen=True, slots=True)
class StepCall:
    """The step of one model. Medians: of eager's step, of a call, of the program in it, of the rest, and its share.

    least_us: the least rest of all calls. tensors: parameters of the model. error: why there are no figures.
    """

    model: str
    tensors: int = 0
    eager_ms: float = 0.0
    call_ms: float = 0.0
    program_ms: float = 0.0
    own_us: float = 0.0
    least_us: float = 0.0
    share: float = 0.0
    error: str | None = None


def measure_call(model: str, rounds: int) -> Json:
    """Time eager's step and a compiled one in turn, `rounds` of each.

    Raises:
        RuntimeError: a call ran no program, or more than one.
    """
    eager = make_training_step(EAGER, model)
    compiled = make_training_step(DOVETAIL, model)
    for _ in range(_WARM_UP_STEPS):
        eager()
        compiled()
    clock = time.perf_counter_ns
    eager_ns, call_ns, program_ns = [], [], []
    with _programs_timed() as passed:
        for _ in range(rounds):
            started = clock()
            eager()
            between = clock()
            compiled()
            ended = clock()
            if len(passed) != 1:
                raise RuntimeError(f"a call of a step ran {len(passed)} programs")
            eager_ns.append(between - started)
            call_ns.append(ended - between)
            program_ns.append(passed.pop())
    own = [call - program for call, program in zip(call_ns, program_ns, strict=True)]
    shares = [rest / call for rest, call in zip(own, call_ns, strict=True)]
    return {
        "tensors": len(list(compiled.workload.model.parameters())),
        "eager_ms": statistics.median(eager_ns) / 1e6,
        "call_ms": statistics.median(call_ns) / 1e6,
        "program_ms": statistics.median(program_ns) / 1e6,
        "own_us": statistics.median(own) / 1e3,
        "least_us": min(own) / 1e3,
        "share": statistics.median(shares),
    }


@contextmanager
def _programs_timed() -> Iterator[list[int]]:
    """The nanoseconds of each run of a program, while the block runs."""
    passed: list[int] = []
    original = CompiledProgram.__call__

    def timed(self: CompiledProgram, inputs: list[Any]) -> tuple[Any, ...]:
        started = time.perf_counter_ns()
        outputs = original(self, inputs)
        passed.append(time.perf_counter_ns() - started)
        return outputs

    CompiledProgram.__call__ = timed  # type: ignore[method-assign]
    try:
        yield passed
    finally:
        CompiledProgram.__call__ = original  # type: ignore[method-assign]
