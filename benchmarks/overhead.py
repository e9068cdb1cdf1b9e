"""Measure what a call costs beyond its operators: wrapper and guards of dovetail next to those of other backends.

The functions add tensors of eight elements, so that nearly all of a call is overhead; with gradients, a call is forward
and backward. Beside them stands an `autograd.Function` of as many inputs that computes nothing: what autograd asks of
everybody. All backends take their turns within a round. A turn is a number of calls, timed one by one, and gives their
median; a backend's figure is its least turn, and what it adds to another one is the difference of these figures.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.measure import DYNAMO, EAGER, compile_for, describe_error
from dovetail.analysis.alias_pattern import Accesses
from dovetail.analysis.region import address_range
from dovetail.execute.alias_guard import AliasGuard
from dovetail.frontends.function import compile as compile_directly

DIRECT = "dovetail.compile"
BARE = "bare Function"
BACKENDS = (EAGER, DYNAMO, BARE, "aot_eager", "dovetail", DIRECT, "inductor")
LIMIT_US = {False: 25.0, True: 40.0}
"""What dovetail may add to `torch.compile(backend="eager")`, without gradients, and forward and backward with them."""

LIMIT_PER_INPUT_US = 0.3
"""What a further input may add without gradients."""

LIMIT_PER_INPUT_TIMES = 1.2
"""What a further input may add with gradients, in terms of what it costs a bare `autograd.Function`."""

LIMIT_PER_VIEW_US = 1.0
_ELEMENTS = 8
_CALLS_PER_GUARD_TURN = 20_000


@dataclass(frozen=True, slots=True)
class Workload:
    """A function and the arguments of its calls."""

    function: Callable[..., Any]
    arguments: list[Tensor]
    wanted: list[Tensor] = field(default_factory=list)

    @property
    def has_gradients(self) -> bool:
        """Whether a call is forward and backward, to the tensors `wanted`."""
        return bool(self.wanted)


@dataclass(frozen=True, slots=True)
class CallCost:
    """One backend on one function. us: of a call. added_us: beyond `backend="eager"`. error: why there are none."""

    kind: str
    inputs: int
    backend: str
    has_gradients: bool
    us: float | None = None
    added_us: float | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class GuardCost:
    """What the guard costs a call. us: where two sets of tensors take turns; same_us: where it is always one set."""

    pattern: str
    views: int
    us: float
    same_us: float


# --- functions ------------------------------------------------------------------------------------------------------


class _Bare(torch.autograd.Function):
    """Its first input, and the gradient that arrives for all of them."""

    @staticmethod
    def forward(ctx: Any, *xs: Tensor) -> Tensor:
        """Hand out a view of the first."""
        ctx.count = len(xs)
        return xs[0].detach()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Hand out what arrives."""
        return (grads[0],) * ctx.count


class _Sum(nn.Module):
    """Adds its parameters to its argument."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.ones(_ELEMENTS) for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        for weight in self.weights:
            x = x + weight
        return x


def _total(*xs: Tensor) -> Tensor:
    total = xs[0]
    for x in xs[1:]:
        total = total + x
    return total + 1


def _writing(written: int, *xs: Tensor) -> Tensor:
    for x in xs[:written]:
        x.add_(1)
    return _total(*xs)


def _tensors(count: int) -> list[Tensor]:
    return [torch.ones(_ELEMENTS) for _ in range(count)]


def _none_written(count: int) -> Workload:
    return Workload(_total, _tensors(count))


def _one_written(count: int) -> Workload:
    return Workload(lambda *xs: _writing(1, *xs), _tensors(count))


def _all_written(count: int) -> Workload:
    return Workload(lambda *xs: _writing(count, *xs), _tensors(count))


def _gradients(count: int) -> Workload:
    inputs = [x.requires_grad_() for x in _tensors(count)]
    return Workload(_total, inputs, inputs)


def _parameters(count: int) -> Workload:
    module = _Sum(count)
    return Workload(module, _tensors(1), list(module.parameters()))


KINDS: dict[str, Callable[[int], Workload]] = {
    "none written": _none_written,
    "one written": _one_written,
    "all written": _all_written,
    "all require gradients": _gradients,
    "parameters of a module": _parameters,
}


# --- calls ----------------------------------------------------------------------------------------------------------


def measure_calls(
    counts: Sequence[int], backends: Sequence[str], *, rounds: int, calls: int, inductor_s: float
) -> list[CallCost]:
    """Time calls of each kind of function and number of inputs. inductor_s: compile with inductor that long at most."""
    left = {"inductor": inductor_s}
    rows = []
    for kind, make in KINDS.items():
        for count in counts:
            rows += _measure_one(kind, make, count, backends, rounds, calls, left)
    return rows


def _measure_one(
    kind: str,
    make: Callable[[int], Workload],
    count: int,
    backends: Sequence[str],
    rounds: int,
    calls: int,
    left: dict[str, float],
) -> list[CallCost]:
    torch.compiler.reset()
    gradients = make(1).has_gradients
    turns: dict[str, Callable[[], Any]] = {}
    failed: dict[str, str] = {}
    for backend in backends:
        if left.get(backend, 1.0) <= 0.0:
            failed[backend] = "no time left to compile"
            continue
        start = time.perf_counter()
        try:
            turns[backend] = _ready(backend, make(count))
        except Exception as error:
            failed[backend] = describe_error(error)
        if backend in left:
            left[backend] -= time.perf_counter() - start
    times: dict[str, list[float]] = {backend: [] for backend in turns}
    for number in range(rounds):
        order = [*turns]
        shift = number % max(1, len(order))
        for backend in order[shift:] + order[:shift]:
            times[backend].append(_turn_us(turns[backend], calls))
    rows = [CallCost(kind, count, backend, gradients, error=error) for backend, error in failed.items()]
    least = {backend: min(us) for backend, us in times.items()}
    for backend, us in least.items():
        added = us - least[DYNAMO] if DYNAMO in least else None
        rows.append(CallCost(kind, count, backend, gradients, us, added))
    return rows


def _ready(backend: str, workload: Workload) -> Callable[[], Any]:
    """A call without arguments, compiled and warm."""
    if backend == BARE:
        forward = partial(_Bare.apply, *(workload.wanted or workload.arguments))
    elif backend == DIRECT:
        forward = partial(compile_directly(workload.function), *workload.arguments)
    else:
        forward = partial(compile_for(backend, workload.function), *workload.arguments)
    gradient = torch.ones(_ELEMENTS)

    def both() -> None:
        torch.autograd.grad(forward(), workload.wanted, gradient)

    call = both if workload.wanted else forward
    for _ in range(3):
        call()
    return call


def _turn_us(call: Callable[[], Any], calls: int) -> float:
    clock = time.perf_counter_ns
    passed = []
    for _ in range(calls):
        start = clock()
        call()
        passed.append(clock() - start)
    return statistics.median(passed) / 1e3


def per_input_us(rows: Sequence[CallCost], kind: str, backend: str) -> float | None:
    """What one more input adds beyond `backend="eager"`, from the least to the largest number of inputs."""
    return _slope([(r.inputs, r.added_us) for r in rows if (r.kind, r.backend) == (kind, backend)])


def limit_per_input_us(rows: Sequence[CallCost], kind: str) -> float | None:
    """What it may add: a fixed time, or with gradients a multiple of what it costs a bare `autograd.Function`."""
    of_kind = [row for row in rows if row.kind == kind]
    if not any(row.has_gradients for row in of_kind):
        return LIMIT_PER_INPUT_US
    bare = _slope([(row.inputs, row.us) for row in of_kind if row.backend == BARE])
    return None if bare is None else LIMIT_PER_INPUT_TIMES * bare


def _slope(points: Sequence[tuple[int, float | None]]) -> float | None:
    known = sorted((inputs, us) for inputs, us in points if us is not None)
    if len(known) < 2 or known[0][0] == known[-1][0]:
        return None
    return (known[-1][1] - known[0][1]) / (known[-1][0] - known[0][0])


# --- the guard ------------------------------------------------------------------------------------------------------


def _slices(count: int) -> list[Tensor]:
    return list(torch.ones(_ELEMENTS * count).split(_ELEMENTS))


def _columns(count: int) -> list[Tensor]:
    return list(torch.ones(_ELEMENTS, count).unbind(1))


def _windows(count: int) -> list[Tensor]:
    base = torch.ones(count + _ELEMENTS)
    return [base[i : i + _ELEMENTS] for i in range(count)]


def _columns_with_gradients(count: int) -> list[Tensor]:
    base = torch.ones(_ELEMENTS, count, requires_grad=True) * 1
    return [base[:, i] for i in range(count)]


PATTERNS: dict[str, tuple[Callable[[int], list[Tensor]], bool]] = {
    "fresh tensors": (_tensors, False),
    "disjoint slices": (_slices, False),
    "interleaved columns": (_columns, False),
    "overlapping windows": (_windows, False),
    "columns, with gradients": (_columns_with_gradients, True),
}


def measure_guards(counts: Sequence[int], *, repeats: int) -> list[GuardCost]:
    """Time the question how written inputs lie, for tensors of which all are written."""
    rows = []
    for pattern, (make, are_tracked) in PATTERNS.items():
        for count in counts:
            one, other = make(count), make(count)
            everything = frozenset(range(count))
            sizes = [end - start for start, end in map(address_range, one)]
            guard = AliasGuard(Accesses(everything, everything if are_tracked else frozenset()), sizes)
            us = _asked_us(guard, [one, other], repeats)
            rows.append(GuardCost(pattern, count, us, _asked_us(guard, [one, one], repeats)))
    return rows


def _asked_us(guard: AliasGuard, calls: Sequence[list[Tensor]], repeats: int) -> float:
    number = max(1, _CALLS_PER_GUARD_TURN // len(calls[0]) // 2)
    least = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        for _ in range(number):
            guard.fingerprint(calls[0])
            guard.fingerprint(calls[1])
        least = min(least, (time.perf_counter() - start) / number / 2)
    return least * 1e6
