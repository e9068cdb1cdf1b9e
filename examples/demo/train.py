"""Train the columns of the demo in turn, a step of each: the common data, and one way of running it for each column."""

from __future__ import annotations

import hashlib
import inspect
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from demo.data import sample_batches
from demo.model import Gpt, GptConfig
from dovetail.analysis.paired_ratio import PairedRatio, paired_ratio
from dovetail.inspect.memory import measure_peak

EAGER = "eager"
_WARM_UP_STEPS = 2


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """Everything that the columns have in common.

    Attributes:
        steps: at most so many, of each column.
        seconds: no step begins later than this after the first one, but for the first `least_steps`.
    """

    model: GptConfig
    steps: int
    batch: int
    seed: int
    seconds: float = float("inf")
    least_steps: int = 8
    learning_rate: float = 1e-3


@dataclass(frozen=True, slots=True)
class Column:
    """What one way of running the training gave.

    Attributes:
        name: "eager", or the backend given to `torch.compile`.
        losses: the loss of each step.
        step_seconds: wall time of each step (forward, backward, optimizer); the first one includes compilation.
        peak_bytes: highest live tensor memory of one more step, above weights and optimizer state.
        live_bytes: the level after each allocator event of that step.
        weights_digest: a hash of all weights after the timed steps.
        failure: None, or one line saying why the column is empty.
    """

    name: str
    losses: tuple[float, ...] = ()
    step_seconds: tuple[float, ...] = ()
    peak_bytes: int = 0
    live_bytes: tuple[int, ...] = ()
    weights_digest: str = ""
    failure: str | None = None

    @property
    def first_step_seconds(self) -> float:
        """Wall time of the first step, compilation included."""
        return self.step_seconds[0]

    @property
    def steady_seconds(self) -> tuple[float, ...]:
        """Wall times of the steps after the warm-up; of all of them where there is nothing else."""
        return self.step_seconds[_WARM_UP_STEPS:] or self.step_seconds

    @property
    def median_step_ms(self) -> float:
        """Median wall time of a steady step, in milliseconds."""
        return statistics.median(self.steady_seconds) * 1e3

    @property
    def quartiles_ms(self) -> tuple[float, float]:
        """A quarter of the steady steps took less than the first, a quarter more than the second, in milliseconds."""
        times = [seconds * 1e3 for seconds in self.steady_seconds]
        first, _, third = statistics.quantiles(times, n=4, method="inclusive") if len(times) > 1 else times * 3
        return first, third

    def time_ratio(self, reference: Column) -> PairedRatio:
        """This column's time for a step over the reference's; both have taken equally many, in turn."""
        return paired_ratio(self.steady_seconds, reference.steady_seconds)


def train_columns(
    plan: TrainingPlan,
    runs: Sequence[tuple[str, Mapping[str, object] | None]],
    text: Tensor,
    on_step: Callable[[int, float], None],
) -> tuple[Column, ...]:
    """Train a fresh model for each column, in turn, and return the columns.

    Every column starts from the same weights, sees the same batches and asks for the same random numbers, whatever the
    others do. Who goes first in a round changes by chance, so that nobody always follows the same neighbour.

    Args:
        plan: the common part.
        runs: the name of each column, eager first, and its options for `torch.compile`. What a column after the second
            raises ends that column; what the first two raise is raised.
        text: u8[bytes], what to train on.
        on_step: hears the place of a column and its loss after each of its steps.
    """
    torch.compiler.reset()
    runners = [_Runner(name, plan, options) for name, options in runs]
    *batches, last = sample_batches(text, plan.steps + 1, plan.batch, plan.model.context, plan.seed)
    order = random.Random(plan.seed)
    started = time.perf_counter()
    for number, (tokens, targets) in enumerate(batches):
        if number >= plan.least_steps and time.perf_counter() - started > plan.seconds:
            break
        running = [place for place, runner in enumerate(runners) if runner.failure is None]
        if number:  # compilation goes in the order of the table
            order.shuffle(running)
        for place in running:
            try:
                loss = runners[place].train(tokens, targets)
            except Exception as error:
                if place < 2:
                    raise
                runners[place].failure = describe_failure(error)
            else:
                on_step(place, loss)
    return tuple(runner.column(last) for runner in runners)


class _Runner:
    """One column's own model, optimizer and random numbers."""

    def __init__(self, name: str, plan: TrainingPlan, options: Mapping[str, object] | None) -> None:
        self.name = name
        self.failure: str | None = None
        torch.manual_seed(plan.seed)
        self._model = Gpt(plan.model).train()
        self._random_state = torch.get_rng_state()
        self._options = options
        self._run: Callable[..., Any] | None = None
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=plan.learning_rate)
        self._losses: list[float] = []
        self._seconds: list[float] = []

    def train(self, tokens: Tensor, targets: Tensor) -> float:
        """One timed step. Returns its loss."""
        if self._run is None:
            self._run = self._model if self.name == EAGER else _compiled(self._model, self.name, self._options)
        torch.set_rng_state(self._random_state)
        started = time.perf_counter()
        loss = self._step(tokens, targets).item()
        self._optimizer.zero_grad(set_to_none=True)
        self._seconds.append(time.perf_counter() - started)
        self._random_state = torch.get_rng_state()
        self._losses.append(loss)
        return loss

    def column(self, batch: tuple[Tensor, Tensor]) -> Column:
        """What was measured, and the memory of one more step."""
        if self.failure is not None:
            return Column(self.name, failure=self.failure)
        digest = _digest(self._model)
        torch.set_rng_state(self._random_state)
        report = measure_peak(self._step, *batch)
        losses, seconds = tuple(self._losses), tuple(self._seconds)
        return Column(self.name, losses, seconds, report.peak_bytes, report.live_bytes, digest)

    def _step(self, tokens: Tensor, targets: Tensor) -> Tensor:
        assert self._run is not None, "compiled by the first step"
        loss: Tensor = self._run(tokens, targets)
        loss.backward()
        self._optimizer.step()
        return loss.detach()


def _compiled(model: Gpt, backend: str, options: Mapping[str, object] | None) -> Callable[..., Any]:
    compile_model: Any = torch.compile
    # The columns' models share Python code. Where torch can keep their compiled code apart, no column tries the guards
    # of another one first.
    apart = {"isolate_recompiles": True} if "isolate_recompiles" in inspect.signature(torch.compile).parameters else {}
    compiled: Callable[..., Any] = compile_model(model, backend=backend, options=options, **apart)
    return compiled


def describe_failure(error: BaseException) -> str:
    """Return the first telling line of an error, with the reason where it is a missing C++ compiler."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    head = f"{type(error).__name__}: {lines[0] if lines else 'no message'}"
    if "InvalidCxxCompiler" in str(error) or "No working C++ compiler" in str(error):
        return f"needs a C++ compiler, and none was found on this machine ({head})"
    return head


def _digest(model: torch.nn.Module) -> str:
    state = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        state.update(name.encode())
        state.update(tensor.detach().contiguous().view(torch.uint8).numpy().tobytes())
    return state.hexdigest()
