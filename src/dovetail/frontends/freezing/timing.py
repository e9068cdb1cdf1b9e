"""How long a frozen method takes next to the model's own, measured when the model is frozen.

Both are called with the example's arguments, in turn, and the ratio of each pair counts
(`dovetail.analysis.paired_ratio`). The model's code runs again for that, so it is done only on request.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from dovetail.analysis.paired_ratio import PairedRatio, paired_ratio
from dovetail.errors import SlowerThanEager
from dovetail.errors.base import warn
from dovetail.frontends.freezing.examples import Example
from dovetail.frontends.freezing.method import RunnableMethod

MOST_PAIRS = 51
LEAST_PAIRS = 9
SECONDS = 1.0
Clock = Callable[[], float]


def time_methods(
    model: torch.nn.Module,
    frozen: torch.nn.Module,
    methods: Mapping[str, RunnableMethod],
    examples: Mapping[str, Example],
    clock: Clock = time.perf_counter,
) -> dict[str, PairedRatio]:
    """The time of frozen methods divided by eager's, by name. Warns SlowerThanEager of those that take longer.

    A method that writes its arguments or the module's
    state is left out: calls to compare would change both. Torch's generator stays where it is.
    """
    found = {}
    before = torch.get_rng_state()
    try:
        for name, example in examples.items():
            if any(variant.runner.writes for variant in methods[name].variants):
                continue
            args, kwargs = example.call(example.leaves)
            calls = [partial(_method(module, name), *args, **kwargs) for module in (frozen, model)]
            found[name] = _in_turn(calls, clock)
    finally:
        torch.set_rng_state(before)
    for name, ratio in found.items():
        if ratio.low > 1:
            warn(SlowerThanEager(name, as_text(ratio)))
    return found


def as_text(ratio: PairedRatio) -> str:
    """The ratio with its interval."""
    return f"{ratio.median:.2f}x eager's time ({ratio.spread})"


def _method(module: torch.nn.Module, name: str) -> Callable[..., Any]:
    method: Callable[..., Any] = module if name == "forward" else getattr(module, name)
    return method


def _in_turn(calls: Sequence[Callable[[], Any]], clock: Clock) -> PairedRatio:
    """Time two calls, each first in every other pair. The first pair is not counted: caches are cold."""
    times: tuple[list[float], list[float]] = ([], [])
    with torch.no_grad():
        started = clock()
        for pair in range(MOST_PAIRS + 1):
            if pair > LEAST_PAIRS and clock() - started > SECONDS:
                break
            for side in (0, 1) if pair % 2 == 0 else (1, 0):
                start = clock()
                calls[side]()
                times[side].append(clock() - start)
    return paired_ratio(times[0][1:], times[1][1:])
