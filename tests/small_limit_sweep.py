"""Search for small programs that do something else under a memory limit, or take more memory than they may.

    python -m tests.small_limit_sweep --minutes 20 --shard 0/2 --state small-limits-0.json
    python -m tests.small_limit_sweep --first 4711 --programs 1

The programs are those of `tests.recompute_sweep`: as a training step for even seeds, and as a function with backward
for odd ones. Each runs under one limit, drawn below the peak without one, or under the lowest on offer. Compared
with eager's, bit by bit: results, gradients, weights, optimizer state and random numbers of each call. The peak of each
call, the first included, may not be above the limit, to which the state that the first call makes is added. The exit
status is 1 when something failed.
"""

from __future__ import annotations

import gc
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

import dovetail
from dovetail.errors import MemoryLimitTooLow
from dovetail.inspect.memory import measure_peak
from tests.recompute_sweep import program, same
from tests.searching import Standing, begin, keep, parser_of, quietly

_CALLS = 3
_FLOORS = 3  # forward has one, and backward of some of the results one of its own
_LEAST = 0.4  # what limits are drawn from begins at this part of the peak without one: many refuse it
_SIZE = 48  # large enough for what compiling takes itself
_EVERY = 16  # programs after which what is alive is taken out of what garbage collection looks through
_OPTIMIZERS: tuple[Callable[[list[Tensor]], torch.optim.Optimizer], ...] = (
    lambda weights: torch.optim.SGD(weights, lr=0.01),
    lambda weights: torch.optim.SGD(weights, lr=0.01, momentum=0.9),
    lambda weights: torch.optim.AdamW(weights, lr=0.01),
)
Call = Callable[[int], list[Tensor]]
"""A call by its number: what it results in, all that is compared."""


@dataclass
class State(Standing):
    """Where a search stands. next: the first seed that was not tried. limited: programs that a limit changed."""

    limited: int = 0


@dataclass(slots=True)
class Run:
    """What came of some calls: by call, all that is compared, its peak above what was there before, and what of that
    was there after it.
    """

    results: list[list[Tensor]] = field(default_factory=list)
    peaks: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)

    @property
    def peak(self) -> int:
        """The highest of the peaks, less what only the first call leaves: the state of an optimizer, and constants."""
        return max(peak - (end - self.ends[-1]) for peak, end in zip(self.peaks, self.ends, strict=True))


def weights_of(seed: int) -> list[Tensor]:
    """The leaves that a program differentiates: a matrix and a bias."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, generator=generator).requires_grad_() for shape in ((_SIZE, _SIZE), (_SIZE,))]


def step_of(seed: int, options: dict[str, Any] | None) -> Call:
    """The program of a seed as a training step with weights of its own. options: None for eager mode."""
    function, weights = program(seed), weights_of(seed)
    optimizer = _OPTIMIZERS[seed // 2 % len(_OPTIMIZERS)](weights)

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = function(x, *weights)[-1]
        loss.backward()
        optimizer.step()
        return loss.detach()

    called = step if options is None else dovetail.compile_step(step, **options)
    batch = torch.randn(_SIZE, _SIZE, generator=torch.Generator().manual_seed(seed + 1))

    def call(number: int) -> list[Tensor]:
        loss = called(batch)
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        kept = [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]
        return [loss, *weights, *gradients, *kept]

    return call


def function_of(seed: int, options: dict[str, Any] | None) -> Call:
    """The program of a seed as a function, called forward and backward. options: None for eager mode."""
    function, weights = program(seed), weights_of(seed)
    called = function if options is None else dovetail.compile(function, **options)
    batch = torch.randn(_SIZE, _SIZE, generator=torch.Generator().manual_seed(seed + 1)).requires_grad_()

    def call(number: int) -> list[Tensor]:
        for tensor in (batch, *weights):
            tensor.grad = None
        results = called(batch, *weights)
        results[-1].backward()
        leaves = [tensor.grad for tensor in (batch, *weights) if tensor.grad is not None]
        return [*(result.detach() for result in results), *leaves]

    return call


def calls_of(seed: int, options: dict[str, Any] | None) -> Run:
    """Some calls of the program of a seed. Raises: MemoryLimitTooLow."""
    torch.manual_seed(seed)
    call, run = (step_of if seed % 2 == 0 else function_of)(seed, options), Run()
    for number in range(_CALLS):
        made: list[list[Tensor]] = []
        report = measure_peak(lambda number=number, made=made: made.append(call(number)))  # type: ignore[misc]
        run.results.append([tensor.detach().clone() for tensor in made[0]])
        run.peaks.append(report.peak_bytes)
        run.ends.append(report.end_bytes)
    run.results.append([torch.get_rng_state()])
    return run


def _limited(seed: int, limit: int) -> tuple[Run, int]:
    """The calls under a limit, or under the lowest that is offered, and that limit. Raises: MemoryLimitTooLow."""
    for _ in range(_FLOORS):
        try:
            return calls_of(seed, {"memory_limit": f"transient:{limit}B", "verify": 1}), limit
        except MemoryLimitTooLow as error:
            limit = int(error.facts["floor_bytes"])
    return calls_of(seed, {"memory_limit": f"transient:{limit}B", "verify": 1}), limit


def failure(seed: int) -> tuple[str, bool]:
    """What is wrong with the program of a seed under a limit, "" for nothing; and whether the limit changed it."""
    try:
        expected = calls_of(seed, None)
    except RuntimeError:
        return "", False  # its loss has no gradient
    free = calls_of(seed, {"partition": "default"}).peak
    found, limit = _limited(seed, int(random.Random(seed).uniform(_LEAST, 1.0) * free))
    if found.peak > limit:
        return f"the limit is {limit}, the peak is {found.peak} (calls: {found.peaks})", True
    for number, (wanted, made) in enumerate(zip(expected.results, found.results, strict=True)):
        if len(wanted) != len(made):
            return f"call {number}: {len(made)} results, not {len(wanted)}", True
        for place, (a, b) in enumerate(zip(wanted, made, strict=True)):
            if not same(a, b):
                return f"limit {limit}, call {number}: value {place} differs", True
    return "", limit < free


def search(state: State, step: int, seconds: float, programs: int | None, note: Callable[[State], None]) -> None:
    """Try seeds `state.next`, `state.next + step`, ... until the time is up or so many were tried in all."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and (programs is None or state.tried < programs):
        if state.tried % _EVERY in (0, 1):  # measuring collects garbage first, which takes as long as all that lives
            gc.collect()
            gc.freeze()
        try:
            wrong, limited = failure(state.next)
        except Exception as error:
            wrong, limited = f"{type(error).__name__}: {error}".split("\n")[0], False
        if wrong:
            state.failures[str(state.next)] = wrong
            print(f"seed {state.next}: {wrong}", flush=True)
        state.tried += 1
        state.limited += limited
        state.next += step
        note(state)


@quietly()
def main(argv: list[str] | None = None) -> int:
    """Run a search from the command line; gives its exit status."""
    options = parser_of("tests.small_limit_sweep", __doc__).parse_args(argv)
    state, shards = begin(options, State(0))
    search(state, shards, options.minutes * 60, options.programs, lambda state: keep(options, state))
    print(f"{state.tried} tried, {state.limited} that a limit changed, {len(state.failures)} failures")
    return 1 if state.failures else 0


if __name__ == "__main__":
    sys.exit(main())
