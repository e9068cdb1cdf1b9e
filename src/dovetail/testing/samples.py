"""Run a dumped program on random inputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch


def run_on_samples(run: Callable[[list[Any]], tuple[Any, ...]], inputs: Mapping[str, Any], seed: int = 0) -> None:
    """Call `run` with random inputs and print what comes out.

    inputs: name -> `(shape, stride, dtype, device)`, sizes as Python expressions over symbols (each taken as 2), or the
    expression of a number.
    """
    torch.manual_seed(seed)
    outputs = run([_make(description) for description in inputs.values()])
    for position, output in enumerate(outputs):
        if isinstance(output, torch.Tensor):
            print(f"output {position}: {output.dtype} {tuple(output.shape)} strides {output.stride()}")
        else:
            print(f"output {position}: {output!r}")


class _Twos(dict[str, Any]):
    def __missing__(self, key: str) -> Any:
        return 2


def _number(text: str) -> Any:
    return eval(text, {"__builtins__": {}}, _Twos(math=math, max=max, min=min, float=float, int=int, round=round))


def _make(description: Any) -> Any:
    if isinstance(description, str):
        return _number(description)
    shape, stride, dtype, device = description
    result = torch.empty_strided([_number(s) for s in shape], [_number(s) for s in stride], dtype=dtype, device=device)
    values = torch.randn(result.shape) if dtype.is_floating_point or dtype.is_complex else torch.zeros(result.shape)
    return result.copy_(values) if 0 not in result.stride() else result.new_zeros(()).expand(result.shape)
