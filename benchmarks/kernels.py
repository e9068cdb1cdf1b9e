"""Groups of operators by themselves: eager mode, native code, inductor, and a copy of as many bytes.

Each is a function of tensors of some rows and columns, without gradients, called by turns in each of these ways, in a
process for each size and number of threads. A ratio is the median over the rounds. The copy moves half of the bytes
that the function reads and writes, so that it reads and writes as many: what memory bounds takes that long at least.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_leaves

import dovetail
from benchmarks.processes import describe_machine, last_line_of
from benchmarks.step_memory import NO_COMPILER, has_cpp_compiler
from benchmarks.tables import write_tables

Function = Callable[..., Any]
SIZES = {"small": (32, 64), "middle": (512, 512), "large": (4096, 1024)}
"""Rows and columns."""

_INDUCTOR, _COPY = "inductor", "copy"
_SHORT_S = 2e-3  # of a turn, at least
_aten: Any = torch.ops.aten


def _chain(x: Tensor, y: Tensor, bias: Tensor) -> Tensor:
    return ((x + bias) * y - x).clamp(-1, 1).relu() * 0.5


def _biased_gelu(x: Tensor, bias: Tensor) -> Tensor:
    return F.gelu(x + bias, approximate="tanh")


def _gelu_gradient(gradient: Tensor, x: Tensor) -> Tensor:
    made: Tensor = _aten.gelu_backward(gradient, x, approximate="tanh")
    return made * 0.5


def _swiglu(x: Tensor, y: Tensor) -> Tensor:
    return F.silu(x) * y


def _lstm_gates(i: Tensor, f: Tensor, g: Tensor, o: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def _adamw(w: Tensor, g: Tensor, m: Tensor, v: Tensor) -> None:
    w.mul_(1 - 1e-5)
    m.lerp_(g, 0.1)
    v.mul_(0.999).addcmul_(g, g, value=0.001)
    w.addcdiv_(m, (v.sqrt() / 0.03).add_(1e-8), value=-1e-3)


def _layer_norm(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    summed = x + y
    return F.layer_norm(summed, summed.shape[-1:], weight, bias), summed


def _layer_norm_gradient(g: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, w: Tensor, b: Tensor) -> Any:
    return _aten.native_layer_norm_backward(g, x, x.shape[-1:], mean, rstd, w, b, [True, True, True])


def _rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * weight


def _softmax(x: Tensor, mask: Tensor) -> Tensor:
    return (x * 0.125 + mask).softmax(-1)


def _cross_entropy(scores: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
    logs = scores.log_softmax(-1)
    loss = F.nll_loss(logs, classes)
    ones = torch.zeros_like(logs).scatter(1, classes[:, None], -1 / len(classes))
    return loss, _aten._log_softmax_backward_data(ones, logs, -1, torch.float32)


def _rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def _made(rows: int, columns: int) -> dict[str, tuple[Function, tuple[Tensor, ...]]]:
    """The functions and what they are called with."""

    def drawn(*sizes: int) -> Tensor:
        return torch.randn(*(sizes or (rows, columns)))

    x, w, b = drawn(), drawn(columns), drawn(columns)
    mean, rstd = x.mean(-1, keepdim=True), 1 / x.std(-1, keepdim=True)
    return {
        "bias, product, clamp": (_chain, (drawn(), drawn(), b)),
        "bias and gelu": (_biased_gelu, (drawn(), b)),
        "gradient of gelu": (_gelu_gradient, (drawn(), drawn())),
        "silu and product": (_swiglu, (drawn(), drawn())),
        "gates of an LSTM": (_lstm_gates, tuple(drawn() for _ in range(5))),
        "AdamW": (_adamw, (drawn(), drawn(), drawn(), drawn().abs())),
        "residual and layer norm": (_layer_norm, (drawn(), drawn(), w, b)),
        "gradient of layer norm": (_layer_norm_gradient, (drawn(), x, mean, rstd, w, b)),
        "RMS norm": (_rms_norm, (drawn(), w)),
        "scale, mask, softmax": (_softmax, (drawn(), drawn(rows, columns))),
        "cross entropy, gradient": (_cross_entropy, (drawn(), torch.arange(rows) % columns)),
        "rotary positions": (_rotary, (drawn(), drawn(rows, columns // 2), drawn(rows, columns // 2))),
    }


@dataclass(frozen=True, slots=True)
class KernelCost:
    """By way: microseconds of a call, and those relative to eager mode."""

    cluster: str
    size: str
    threads: int
    call_us: dict[str, float]
    ratios: dict[str, float]


def measure(size: str, threads: int, rounds: int, *, with_inductor: bool) -> list[KernelCost]:
    """All functions of a size, in this process."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    found = []
    with torch.no_grad():
        for name, (function, given) in _made(*SIZES[size]).items():
            spent = _in_turns(_ways(function, given, with_inductor=with_inductor), rounds)
            ratios = {
                way: statistics.median(a / b for a, b in zip(times, spent["eager"], strict=True))
                for way, times in spent.items()
            }
            us = {way: 1e6 * statistics.median(times) for way, times in spent.items()}
            found.append(KernelCost(name, size, threads, us, ratios))
    return found


def _ways(function: Function, given: tuple[Tensor, ...], *, with_inductor: bool) -> dict[str, Callable[[], object]]:
    made: dict[str, Function] = {"eager": function, "native": dovetail.compile(function)}
    made["fast"] = dovetail.compile(function, numerics="fast")
    if with_inductor:
        torch._dynamo.reset()  # else it counts the sizes of a function
        made[_INDUCTOR] = torch.compile(function, dynamic=False)
    results = tree_leaves(function(*given)) or list(given)
    size = sum(each.nbytes for each in (*given, *results) if isinstance(each, Tensor))
    source, target = torch.zeros(max(size // 8, 1)), torch.zeros(max(size // 8, 1))

    def called(way: Function) -> Callable[[], object]:
        return lambda: way(*given)

    return {**{name: called(way) for name, way in made.items()}, _COPY: lambda: target.copy_(source)}


def _in_turns(ways: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of a call, by way and round."""
    counts = {}
    for name, way in ways.items():
        for _ in range(3):
            way()
        begin = time.perf_counter()
        way()
        counts[name] = max(1, int(_SHORT_S / max(time.perf_counter() - begin, 1e-7)))
    spent: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            begin = time.perf_counter()
            for _ in range(counts[name]):
                way()
            spent[name].append((time.perf_counter() - begin) / counts[name])
    return spent


def write_kernels_report(rounds: int, threads: Sequence[int], out: Path) -> None:
    """Print the table, and write `kernels.json` and `kernels.md` into `out`."""
    with_inductor = has_cpp_compiler()
    if not with_inductor:
        print(f"{_INDUCTOR}: {NO_COMPILER}")
    rows = []
    for count in threads:
        for size in SIZES:
            line = last_line_of("kernels", size, str(count), str(rounds), str(int(with_inductor)))
            rows += [KernelCost(**each) for each in json.loads(line)]
    ways = list(rows[0].call_us)
    head = ["operators", "size", "threads", "eager, us", *(f"{way} / eager" for way in ways[1:])]
    cells = [
        [
            *(row.cluster, row.size, str(row.threads), f"{row.call_us['eager']:,.1f}"),
            *(f"{row.ratios[way]:.2f}" for way in ways[1:]),
        ]
        for row in rows
    ]
    means = [
        ["geometric mean", size, str(count), "", *(f"{_mean(rows, size, count, way):.2f}" for way in ways[1:])]
        for count in threads
        for size in SIZES
    ]
    record: dict[str, Any] = {"rounds": rounds, "rows": [asdict(row) for row in rows]}
    write_tables("kernels", {"Groups of operators": (head, cells + means)}, record, describe_machine("cpu"), out)


def _mean(rows: Sequence[KernelCost], size: str, threads: int, way: str) -> float:
    """The geometric mean of ratios."""
    ratios = [row.ratios[way] for row in rows if (row.size, row.threads) == (size, threads)]
    return math.exp(statistics.mean(map(math.log, ratios)))


if __name__ == "__main__":
    size_, threads_, rounds_, with_inductor_ = sys.argv[1], *map(int, sys.argv[2:])
    print(json.dumps([asdict(each) for each in measure(size_, threads_, rounds_, with_inductor=bool(with_inductor_))]))
