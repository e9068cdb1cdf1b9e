"""Search for wrong gradients where backward computes values again: random differentiable programs against eager.

    python -m tests.recompute_sweep --minutes 20 --shard 0/2 --state recompute-0.json
    python -m tests.recompute_sweep --first 4711 --programs 1

The price of work is set so low that `auto` takes what it can get. Gradients and results are compared bit by bit, with
`min_cut` and `auto` in turn; with `auto`, some programs have an input written between forward and backward, which must
raise where eager raises, or, as with the default split, where a value is saved that another output needs. Some programs
run again under memory limits between the lowest peak on offer and that of the default split: same bits, and a measured
peak that is not above the limit.
The exit status is 1 when something failed.
"""

from __future__ import annotations

import random
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

import dovetail
from dovetail.errors import MemoryLimitTooLow
from dovetail.inspect.memory import measure_peak
from dovetail.partition import choose, work
from tests.searching import Standing, begin, keep, parser_of

_SIZE = 6
_LIMITED = 3  # every third program runs under limits, too
Step: TypeAlias = "Callable[[Tensor, Tensor, Tensor], Tensor]"


def _half(a: Tensor, c: Tensor, bias: Tensor) -> Tensor:
    made = a.clone()
    made[: len(a) // 2].mul_(c[: len(a) // 2])
    return made


def _write(a: Tensor, c: Tensor, bias: Tensor) -> Tensor:
    made = a * 2
    with torch.no_grad():
        made[0].fill_(0.5)
    return made


STEPS: dict[str, Step] = {
    "sin": lambda a, c, bias: a.sin(),
    "exp": lambda a, c, bias: (a * 0.1).exp(),
    "tanh": lambda a, c, bias: a.tanh(),
    "mul": lambda a, c, bias: a * c,
    "add": lambda a, c, bias: a + c * 0.5,
    "mm": lambda a, c, bias: (a @ c) * 0.3,
    "t": lambda a, c, bias: a.t(),
    "sigmoid": lambda a, c, bias: torch.sigmoid(a),
    "dropout": lambda a, c, bias: F.dropout(a, 0.4),
    "rows": lambda a, c, bias: a.sum(0, keepdim=True).expand(len(a), -1),
    "relu_": lambda a, c, bias: a.clone().relu_(),
    "add_": lambda a, c, bias: (a * 1.5).add_(c),
    "half": _half,
    "gelu": lambda a, c, bias: F.gelu(a),
    "softmax": lambda a, c, bias: torch.softmax(a, 1),
    "norm": lambda a, c, bias: F.layer_norm(a, bias.shape, weight=bias),
    "copy": lambda a, c, bias: a.t().contiguous(),
    "detach": lambda a, c, bias: a * c.detach(),
    "where": lambda a, c, bias: torch.where(a > 0, a, c * 2),
    "cumsum": lambda a, c, bias: a.cumsum(0) * 0.2,
    "write": _write,
}


@dataclass
class State(Standing):
    """Where a search stands. next: the first seed that was not tried. again: programs that computed values again."""

    raised: int = 0
    again: int = 0


def program(seed: int) -> Callable[..., tuple[Tensor, ...]]:
    """A random program over two square matrices and a bias, of any size; its last result is the loss."""
    rng = random.Random(seed)
    steps = [(rng.choice(list(STEPS)), rng.random(), rng.random()) for _ in range(rng.randint(5, 22))]
    shown = [rng.random() for _ in range(rng.randint(1, 3))]

    def run(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
        values = [x, weight, x + bias]
        for name, first, second in steps:
            a, c = (values[int(place * len(values))] for place in (first, second))
            values.append(STEPS[name](a, c, bias))
        results = [values[int(place * len(values))] for place in shown]
        losses = [(value * value).mean() for value in values[-3:]]
        return (*results, losses[0] + losses[1] + losses[2])

    return run


@contextmanager
def cheap_work() -> Iterator[None]:
    """While active, computing again is taken to cost next to nothing."""
    machine, worth = work.CPU, choose.MOST_WORK
    work.CPU, choose.MOST_WORK = work.Machine(0, 10), 3.0
    try:
        yield
    finally:
        work.CPU, choose.MOST_WORK = machine, worth


def outcome(function: Callable[..., Any], called: Callable[..., Any], seed: int, writes: bool) -> list[Tensor] | str:
    """Results and gradients of a call, or the error of its backward. writes: the bias is written between the two."""
    generator = torch.Generator().manual_seed(seed)
    inputs = [torch.randn(*shape, generator=generator) for shape in ((_SIZE, _SIZE), (_SIZE, _SIZE), (_SIZE,))]
    for tensor in inputs:
        tensor.requires_grad_()
    torch.manual_seed(seed)
    results = called(*inputs)
    if writes:
        with torch.no_grad():
            inputs[2].add_(1)
    try:
        results[-1].backward()
    except RuntimeError as error:
        return str(error).split(":")[0]
    gradients = [torch.zeros(0) if tensor.grad is None else tensor.grad for tensor in inputs]
    return [*(result.detach() for result in results), *gradients]


def failure(seed: int) -> tuple[str, bool, bool]:
    """What is wrong with the program of a seed, "" for nothing; whether it raised; whether values were made again."""
    function = program(seed)
    partition = ("auto", "min_cut")[seed % 2]
    writes = partition == "auto" and seed % 5 == 0
    expected = outcome(function, function, seed, writes)
    recompute = random.Random(seed).choice(["cheap", "all"])
    with cheap_work():
        compiled = dovetail.compile(function, partition=partition, recompute=recompute)
        found = outcome(function, compiled, seed, writes)
    again = any(graph.sources for graph in compiled.graphs)
    if isinstance(found, str) and not isinstance(expected, str) and writes:
        expected = outcome(function, dovetail.compile(function, partition="default"), seed, writes)
    if isinstance(found, str) or isinstance(expected, str):
        return _difference(expected, found), isinstance(found, str), again
    wrong = _difference(expected, found)
    if not wrong and seed % _LIMITED == 0:
        wrong = under_limits(function, expected, seed)
    return wrong, False, again


def under_limits(function: Callable[..., Any], expected: list[Tensor] | str, seed: int) -> str:
    """What is wrong with a program under memory limits, "" for nothing."""
    drawn = random.Random(seed)
    least, most = _lowest_peak(function, seed), _peak(dovetail.compile(function, partition="default"), seed)
    for share in sorted((0.0, drawn.random(), drawn.random())):
        limit = least + int(share * max(0, most - least))
        compiled = dovetail.compile(function, memory_limit=f"transient:{limit}B", verify=1)
        wrong = _difference(expected, outcome(function, compiled, seed, writes=False))
        peak = _peak(compiled, seed)
        if wrong or peak > limit:
            return f"limit {limit}: {wrong or f'the peak is {peak}'}"
    return ""


def _lowest_peak(function: Callable[..., Any], seed: int) -> int:
    try:
        outcome(function, dovetail.compile(function, memory_limit="transient:1B"), seed, writes=False)
    except MemoryLimitTooLow as error:
        return int(error.facts["floor_bytes"])
    return 1


def _peak(called: Callable[..., Any], seed: int) -> int:
    inputs = [torch.randn(*shape).requires_grad_() for shape in ((_SIZE, _SIZE), (_SIZE, _SIZE), (_SIZE,))]

    def step() -> None:
        results = called(*inputs)
        results[-1].backward()

    return measure_peak(step).peak_bytes


def _difference(expected: list[Tensor] | str, found: list[Tensor] | str) -> str:
    if isinstance(expected, str) or isinstance(found, str):
        return "" if expected == found else f"{_said(expected)}, and here {_said(found)}"
    pairs = zip(expected, found, strict=True)
    return next((f"value {place} differs" for place, (a, b) in enumerate(pairs) if not same(a, b)), "")


def _said(result: list[Tensor] | str) -> str:
    return f"raised {result!r}" if isinstance(result, str) else "gave results"


def same(a: Tensor, b: Tensor) -> bool:
    """Whether two results are equal bit by bit, or not a number in the same places."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if not a.is_floating_point():
        return torch.equal(a, b)
    whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}[a.itemsize]
    return bool(((a.detach().view(whole) == b.detach().view(whole)) | (a.isnan() & b.isnan())).all())


def search(state: State, step: int, seconds: float, programs: int | None, note: Callable[[State], None]) -> None:
    """Try seeds `state.next`, `state.next + step`, ... until the time is up or so many were tried in all."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and (programs is None or state.tried < programs):
        try:
            wrong, raised, again = failure(state.next)
        except Exception as error:
            wrong, raised, again = f"{type(error).__name__}: {error}".split("\n")[0], False, False
        if wrong:
            state.failures[str(state.next)] = wrong
            print(f"seed {state.next}: {wrong}", flush=True)
        state.tried += 1
        state.raised += raised
        state.again += again
        state.next += step
        note(state)


def main(argv: list[str] | None = None) -> int:
    """Run a search from the command line; gives its exit status."""
    parser = parser_of("tests.recompute_sweep", __doc__)
    options = parser.parse_args(argv)
    state, shards = begin(options, State(0))

    def note(state: State) -> None:
        keep(options, state)

    warnings.simplefilter("ignore")
    search(state, shards, options.minutes * 60, options.programs, note)
    print(f"{state.tried} tried, {state.again} computed again, {state.raised} raised, {len(state.failures)} failures")
    return 1 if state.failures else 0


if __name__ == "__main__":
    sys.exit(main())
