"""Set compiled calls of a user's model beside eager ones: time, peak memory, and whether results agree.

Rounds go through all backends one call at a time, in turn, so that what else the machine does meets them alike; what
counts is the ratio of each round (`dovetail.analysis.paired_ratio`). A call is a forward pass, and a backward pass
where its results can have one.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from dovetail.inspect.memory import measure_peak
from dovetail.inspect.plain_run import Difference, compare
from dovetail.torch_compat.pytree import flatten

EAGER = "eager"
Make = Callable[[], tuple[Callable[..., Any], Sequence[Any]]]


@dataclass(slots=True)
class Measured:
    """What one backend took. seconds of its first call; milliseconds of each later one; bytes at its peak.

    difference: of results and gradients to eager's; None where they agree in every bit. failure: what it raised.
    """

    backend: str
    first_call_seconds: float = 0.0
    calls_ms: list[float] = field(default_factory=list)
    peak_bytes: int = 0
    difference: str | None = None
    failure: str = ""

    @property
    def median_ms(self) -> float:
        """Of the calls after the first one."""
        return statistics.median(self.calls_ms) if self.calls_ms else 0.0


def measure_backends(
    make: Make, backends: Sequence[str], rounds: int = 20, progress: Callable[[str], None] | None = None
) -> list[Measured]:
    """Measure eager and each backend of torch.compile, in this order.

    make: gives a module or function, and the arguments of a call; called once for each backend, with equal seeds, so
    that all start from the same numbers. rounds: calls that are timed. progress: told what is being run.
    What a backend raises becomes its `failure`; eager's error is raised.
    """
    told = progress or (lambda text: None)
    columns = [Measured(name) for name in (EAGER, *backends)]
    runs: dict[str, _Run] = {}
    for column in columns:
        told(f"{column.backend}, first call")
        torch.manual_seed(0)
        function, arguments = make()
        try:
            called = function if column.backend == EAGER else torch.compile(function, backend=column.backend)
            run = _Run(function, called, arguments)
            column.first_call_seconds = _seconds(run.call)
            column.difference = _difference(runs.get(EAGER), run)
            column.peak_bytes = measure_peak(run.call).peak_bytes
        except Exception as error:
            if column.backend == EAGER:
                raise
            column.failure = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            continue
        runs[column.backend] = run
    for number in range(rounds):
        told(f"round {number + 1} of {rounds}")
        for column in columns:
            if column.backend in runs:
                column.calls_ms.append(1000 * _seconds(runs[column.backend].call))
    return columns


class _Run:
    """Calls of one backend. results: of the first call, with the gradients that it left behind."""

    def __init__(self, made: Callable[..., Any], called: Callable[..., Any], arguments: Sequence[Any]) -> None:
        self._made = made
        self._called = called
        self._arguments = arguments
        self.results: list[Any] | None = None

    def call(self) -> None:
        """Forward, and backward from the sum of what can have a gradient; old gradients go first."""
        leaves = [leaf for leaf in self._leaves() if leaf.requires_grad]
        for leaf in leaves:
            leaf.grad = None
        if self.results is None:
            torch.manual_seed(1)
        outputs: list[Any] = _tensors_in(self._called(*self._arguments))
        sums = [output.sum() for output in outputs if output.requires_grad]
        if sums:
            torch.stack([part.to(torch.float32) for part in sums]).sum().backward()
        if self.results is None:
            self.results = [item.detach().clone() for item in outputs]
            self.results += [None if leaf.grad is None else leaf.grad.clone() for leaf in leaves]

    def _leaves(self) -> list[torch.Tensor]:
        given = _tensors_in(list(self._arguments))
        return [*given, *(self._made.parameters() if isinstance(self._made, torch.nn.Module) else ())]


def _tensors_in(structure: Any) -> list[Any]:
    leaves, _ = flatten(structure)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _seconds(call: Callable[[], None]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _difference(eager: _Run | None, run: _Run) -> str | None:
    if eager is None or eager.results is None or run.results is None:
        return None
    if len(eager.results) != len(run.results):
        return f"{len(run.results)} results, not {len(eager.results)}"
    found: list[Difference | None] = [compare(a, b) for a, b in zip(eager.results, run.results, strict=True)]
    apart = [difference for difference in found if difference is not None]
    largest = max(apart, key=lambda difference: difference.largest or 0.0, default=None)
    return None if largest is None else str(largest)
