"""Inputs of a graph as plain data, and inputs made from such data.

A tensor is `{"kind": "tensor", "name", "shape", "stride", "dtype", "device"}`; a number is `{"kind": "int", "name",
"value"}`. Sizes that are symbols are given by the number that they were recorded with. Never pickle.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from dovetail.torch_compat.symbols import SYMBOLIC_TYPES, hint_of

_UNKNOWN_SIZE = 2  # of a size that depends on data


def describe_inputs(names: Sequence[str], inputs: Sequence[Any]) -> list[dict[str, object]]:
    """The inputs as data for `json.dump`."""
    return [_described(name, item) for name, item in zip(names, inputs, strict=True)]


def make_inputs(described: Sequence[dict[str, Any]], seed: int = 0) -> list[Any]:
    """Inputs of these shapes: random where a dtype has fractions, zeros elsewhere; equal seeds, equal inputs."""
    generator = torch.Generator().manual_seed(seed)
    return [_made(entry, generator) for entry in described]


def get_inputs(path: str | Path) -> list[Any]:
    """Inputs like those of a graph that was written down.

    path: the JSON file beside it. Raises: ValueError for what is no such file.
    """
    try:
        described = json.loads(Path(path).read_text(encoding="utf-8"))
        return make_inputs(described["inputs"])
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise ValueError(f"{path} does not describe the inputs of a graph: {error!r}") from error


def _described(name: str, item: object) -> dict[str, object]:
    if isinstance(item, torch.Tensor):
        shape, stride = [_number(size) for size in item.shape], [_number(step) for step in item.stride()]
        dtype = str(item.dtype).removeprefix("torch.")
        place = {"shape": shape, "stride": stride, "dtype": dtype, "device": str(item.device)}
        return {"kind": "tensor", "name": name, **place}
    number = _number(item)
    return {"kind": type(number).__name__, "name": name, "value": number}


def _number(item: object) -> object:
    if not isinstance(item, SYMBOLIC_TYPES):
        return item if item is None or isinstance(item, bool | int | float) else repr(item)
    hint = hint_of(item)
    return _UNKNOWN_SIZE if hint is None else hint


def _made(entry: dict[str, Any], generator: torch.Generator) -> Any:
    if entry["kind"] != "tensor":
        return entry["value"]
    dtype: torch.dtype = getattr(torch, entry["dtype"])
    made = torch.empty_strided(entry["shape"], entry["stride"], dtype=dtype, device=entry["device"])
    if not (dtype.is_floating_point or dtype.is_complex):
        return made.zero_()
    drawn = torch.rand(entry["shape"], generator=generator, dtype=torch.float32)
    overlaps = any(step == 0 and size > 1 for step, size in zip(entry["stride"], entry["shape"], strict=True))
    return drawn.to(device=entry["device"], dtype=dtype) if overlaps else made.copy_(drawn)
