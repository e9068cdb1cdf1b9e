"""Measure what a compiled optimizer step allocates: exact peak and bytes, next to eager and to Dynamo alone.

Dynamo traces optimizers as if they were made with `capturable=True`, whose arithmetic has other last bits: results are
compared with Dynamo's alone.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.measure import DYNAMO, EAGER, compile_for, describe_error
from dovetail.inspect.memory import measure_peak

BACKENDS = (EAGER, DYNAMO, "dovetail")
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "AdamW": {},
    "NAdam": {},
    "RAdam": {},
    "SGD": {"momentum": 0.9},
}
_STEPS = 3
_TIMED_STEPS = 10


@dataclass(frozen=True, slots=True)
class StepCost:
    """One backend on one optimizer. Bytes of a warm step. equal: to Dynamo alone after three steps, state and all."""

    optimizer: str
    foreach: bool
    backend: str
    parameter_bytes: int
    peak_bytes: int | None = None
    allocated_bytes: int | None = None
    ms: float | None = None
    equal: bool | None = None
    error: str | None = None


def make_optimizer(name: str, foreach: bool, parameters: int, size: int) -> tuple[list[Tensor], torch.optim.Optimizer]:
    """Square parameters with gradients, and an optimizer that has made its state."""
    torch.manual_seed(0)
    made = [torch.nn.Parameter(torch.randn(size, size)) for _ in range(parameters)]
    for parameter in made:
        parameter.grad = torch.randn_like(parameter)
    optimizer: torch.optim.Optimizer = getattr(torch.optim, name)(made, lr=1e-3, foreach=foreach, **OPTIMIZERS[name])
    optimizer.step()
    return list(made), optimizer


def measure_optimizers(names: Sequence[str], backends: Sequence[str], *, parameters: int, size: int) -> list[StepCost]:
    """Steps of each optimizer, as a loop over parameters and with foreach operators."""
    rows: list[StepCost] = []
    for name in names:
        for foreach in (False, True):
            torch.compiler.reset()
            state = {backend: _Stepper(backend, name, foreach, parameters, size) for backend in (DYNAMO, *backends)}
            expected = state[DYNAMO].after_steps()
            rows += [state[backend].row(expected) for backend in backends]
    return rows


class _Stepper:
    def __init__(self, backend: str, name: str, foreach: bool, parameters: int, size: int) -> None:
        self._labels = name, foreach, backend, parameters * size * size * 4
        self.tensors, self.optimizer = make_optimizer(name, foreach, parameters, size)
        self.step: Callable[[], Any] = compile_for(backend, self.optimizer.step)
        self.known: list[Tensor] | None = None

    def after_steps(self) -> list[Tensor]:
        """Parameters and state after some steps."""
        if self.known is None:
            for _ in range(_STEPS):
                self.step()
            found = [*self.tensors]
            for state in self.optimizer.state.values():
                found += [value for value in state.values() if isinstance(value, Tensor)]
            self.known = [tensor.detach().clone() for tensor in found]
        return self.known

    def row(self, expected: Sequence[Tensor]) -> StepCost:
        """The figures; they come after the steps that are compared."""
        try:
            got = self.after_steps()
            peak = measure_peak(self.step)
        except Exception as error:
            return StepCost(*self._labels, error=describe_error(error))
        times: list[float] = []
        for _ in range(_TIMED_STEPS):
            start = time.perf_counter()
            self.step()
            times.append(time.perf_counter() - start)
        equal = len(got) == len(expected) and all(map(torch.equal, got, expected))
        ms = statistics.median(times) * 1e3
        return StepCost(*self._labels, peak.peak_bytes, peak.allocated_bytes, ms, equal)
