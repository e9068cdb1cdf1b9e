"""Train one column of the demo: a fresh model, the common data, one way of running it."""

from __future__ import annotations

import hashlib
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from dovetail.demo.data import sample_batches
from dovetail.demo.model import Gpt, GptConfig
from dovetail.inspect.memory import measure_peak

EAGER = "eager"


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """Everything that the columns have in common: model sizes, batch sizes, number of steps and the seed."""

    model: GptConfig
    steps: int
    batch: int
    seed: int
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
    def median_step_ms(self) -> float:
        """Median wall time of the steps after the first, in milliseconds."""
        return statistics.median(self.step_seconds[1:] or self.step_seconds) * 1e3


def train_column(name: str, plan: TrainingPlan, text: Tensor, on_step: Callable[[float], None]) -> Column:
    """Train a fresh model and return its column; `on_step` hears each loss as it comes.

    Every call with the same plan starts from the same weights, sees the same batches and asks for the same random
    numbers, whatever ran before it in this process.
    """
    torch.compiler.reset()
    torch.manual_seed(plan.seed)
    model = Gpt(plan.model).train()
    run: Callable[[Tensor, Tensor], Tensor] = model if name == EAGER else torch.compile(model, backend=name)
    optimizer = torch.optim.AdamW(model.parameters(), lr=plan.learning_rate)

    def step(tokens: Tensor, targets: Tensor) -> Tensor:
        loss = run(tokens, targets)
        loss.backward()
        optimizer.step()
        return loss.detach()

    losses: list[float] = []
    seconds: list[float] = []
    *timed, last = sample_batches(text, plan.steps + 1, plan.batch, plan.model.context, plan.seed)
    for tokens, targets in timed:
        started = time.perf_counter()
        loss = step(tokens, targets).item()
        optimizer.zero_grad(set_to_none=True)
        seconds.append(time.perf_counter() - started)
        losses.append(loss)
        on_step(loss)
    digest = _digest(model)
    report = measure_peak(step, *last)
    return Column(name, tuple(losses), tuple(seconds), report.peak_bytes, report.live_bytes, digest)


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
