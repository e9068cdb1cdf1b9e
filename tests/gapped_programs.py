"""Random programs that write parts with gaps in place: columns, every second row, diagonals, windows.

Eager needs no memory for such a write. `failure` holds a compiled program against it: bits, strides, and the most bytes
that were held after an operator.
"""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import dovetail
from dovetail.torch_compat.dispatch import DispatchMode, storage_key

_SIZE = 32

PARTS: dict[str, Callable[[Tensor], Tensor]] = {
    "columns": lambda a: a[:, :-1],
    "last columns": lambda a: a[:, 1:],
    "every second column": lambda a: a[:, ::2],
    "every third row": lambda a: a[::3],
    "window": lambda a: a[2:-1, 1:-3],
    "turned": lambda a: a.t()[:, 3:],
    "column": lambda a: a[:, 3],
    "diagonal": lambda a: a.diagonal(),
    "rows": lambda a: a[:-1],
    "stack": lambda a: a.view(4, -1, 16)[:, 1:, ::2],
}
WRITES: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "add_": lambda part, other: part.add_(1),
    "mul_": lambda part, other: part.mul_(0.5),
    "tanh_": lambda part, other: part.tanh_(),
    "exp_": lambda part, other: part.neg_().abs_().neg_().exp_(),
    "sin_": lambda part, other: part.sin_(),
    "clamp_": lambda part, other: part.clamp_(-0.5, 0.5),
    "zero_": lambda part, other: part.zero_(),
    "fill_": lambda part, other: part.fill_(0.25),
    "relu_": lambda part, other: torch.relu_(part),
    "copy_": lambda part, other: part.copy_(other),
    "add other": lambda part, other: part.add_(other),
    "addcmul_": lambda part, other: part.addcmul_(other, other, value=0.5),
    "mul other": lambda part, other: part.mul_(other),
    "chain": lambda part, other: part.add_(1).mul_(2).sub_(other),
    "sigmoid_": lambda part, other: part.sigmoid_(),
}


def program(seed: int) -> Callable[[Tensor], Tensor]:
    """A random program over a matrix."""
    rng = random.Random(seed)
    steps = [(rng.choice(list(PARTS)), rng.choice(list(WRITES))) for _ in range(rng.randint(1, 4))]
    keep_input = rng.random() < 0.5

    def run(x: Tensor) -> Tensor:
        made = x * 2
        for part, write in steps:
            WRITES[write](PARTS[part](made), PARTS[part](x))
        return made if keep_input else made + x

    return run


class Peak(DispatchMode):
    """Notes the most bytes that results of operators hold at once."""

    def __init__(self) -> None:
        super().__init__()
        self.held: dict[int, int] = {}
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given = {storage_key(item) for item in args if isinstance(item, Tensor)}
        if isinstance(result, Tensor) and storage_key(result) not in given and storage_key(result) not in self.held:
            storage, key = result.untyped_storage(), storage_key(result)
            self.held[key] = storage.nbytes()
            weakref.finalize(storage, self.held.pop, key, None)
        self.bytes = max(self.bytes, sum(self.held.values()))
        return result


def failure(seed: int) -> str:
    """What is wrong with the program of a seed, "" for nothing."""
    function = program(seed)
    compiled = dovetail.compile(function)
    x = torch.randn(_SIZE, _SIZE, generator=torch.Generator().manual_seed(seed))
    compiled(x)
    with Peak() as expected_peak:
        expected = function(x.clone())
    with Peak() as peak:
        made = compiled(x.clone())
    if made.stride() != expected.stride() or not torch.equal(made, expected):
        return f"it differs by {(made - expected).abs().max()}, strides {made.stride()} and {expected.stride()}"
    return f"{peak.bytes} bytes, in eager mode {expected_peak.bytes}" if peak.bytes > expected_peak.bytes else ""
