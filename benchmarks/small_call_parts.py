"""Where a call of a small compiled step spends its time: guard, machine code, and what stands around them.

`python -m benchmarks.small_call_parts --rounds 300`, or with beginnings of names of steps behind it. Calls are made in
turns with eager mode, so that caches are cold, as they are between batches. Each figure is a low quantile of what
passed between the beginning and the end of a function, clocks included (0.1 us and more for each part).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch

import dovetail
from benchmarks.small_steps import SMALL_STEPS
from dovetail.execute.native import executor
from dovetail.execute.step import CompiledStepProgram
from dovetail.frontends.step.guard import StepGuard
from dovetail.frontends.step.runner import StepRunner
from dovetail.frontends.step.tensor_kinds import TensorKinds
from dovetail.reach.guards import PythonGuards

PARTS: dict[str, tuple[Any, str]] = {
    "guard": (StepGuard, "inputs"),
    "its Python state": (PythonGuards, "holds"),
    "its tensors": (TensorKinds, "are"),
    "run": (StepRunner, "run"),
    "program": (CompiledStepProgram, "__call__"),
}
"""Methods, each with what it is called. What a part calls is part of it."""
NATIVE = {"machine code": "cluster_call", "versions": "counter"}
"""What gives the functions of machine code that a program calls."""
_CLOCK = time.perf_counter_ns
_WARM_UP, _QUANTILE = 20, 5


def measure_parts(name: str, rounds: int) -> dict[str, float]:
    """Microseconds of eager mode's step, of a call, and of each part of it."""
    torch.manual_seed(0)
    eager, other = SMALL_STEPS[name](), SMALL_STEPS[name]()
    spent: dict[str, int] = {}
    with _timed(spent):
        compiled = dovetail.compile_step(lambda *_: other(), executors=("native", "aten"))
        passed: dict[str, list[int]] = {part: [] for part in ("eager", "call", *PARTS, *NATIVE)}
        for number in range(_WARM_UP + rounds):
            start = _CLOCK()
            eager()
            between = _CLOCK()
            spent.clear()
            compiled()
            spent |= {"call": _CLOCK() - between, "eager": between - start}
            if number >= _WARM_UP:
                for part, times in passed.items():
                    times.append(spent.get(part, 0))
    return {part: sorted(times)[rounds // _QUANTILE] / 1e3 for part, times in passed.items()}


@contextmanager
def _timed(spent: dict[str, int]) -> Iterator[None]:
    """While active, what passes in each part is added up; programs that are made meanwhile call timed functions."""

    def clocked(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any) -> Any:
            start = _CLOCK()
            try:
                return function(*args)
            finally:
                spent[part] = spent.get(part, 0) + _CLOCK() - start

        return timed

    with ExitStack() as stack:
        for part, (owner, method) in PARTS.items():
            stack.enter_context(mock.patch.object(owner, method, clocked(part, getattr(owner, method))))
        for part, giver in NATIVE.items():
            give = getattr(executor, giver)

            def timed(*args: Any, part: str = part, give: Callable[..., Any] = give) -> Callable[..., Any]:
                return clocked(part, give(*args))

            stack.enter_context(mock.patch.object(executor, giver, timed))
        yield


def main(arguments: list[str]) -> None:
    """Print the table."""
    rounds, chosen = 300, arguments
    if arguments[:1] == ["--rounds"]:
        rounds, chosen = int(arguments[1]), arguments[2:]
    torch.set_num_threads(1)
    heads = ["eager", "call", *PARTS, *NATIVE]
    print("| step, us | " + " | ".join(heads) + " |\n|---|" + "---:|" * len(heads))
    for name in SMALL_STEPS:
        if name.startswith(tuple(chosen) or ("",)):
            print(f"| {name} | " + " | ".join(f"{x:,.0f}" for x in measure_parts(name, rounds).values()) + " |")


if __name__ == "__main__":
    main(sys.argv[1:])
