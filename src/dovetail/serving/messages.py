"""Bodies of requests and replies: tensors by name, as JSON or as safetensors."""

from __future__ import annotations

import json
import math
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from dovetail.artifact.named_result import named_leaves
from dovetail.frontends.freezing.call_form import CallForm

JSON = "application/json"
SAFETENSORS = "application/safetensors"


class BadRequest(Exception):
    """A body that is not a call of the method."""


def arguments_of(form: CallForm, body: bytes, kind: str) -> tuple[Any, Any]:
    """The arguments of a call, by position and by name. kind: JSON or SAFETENSORS. Raises: BadRequest."""
    given = _from_safetensors(body) if kind == SAFETENSORS else _from_json(body)
    leaves: list[Any] = []
    for leaf in form.leaves:
        if leaf.kind is None:
            value = given.pop(leaf.name, leaf.value)
            leaves.append(value)
            continue
        if leaf.name not in given:
            raise BadRequest(f"there is no input {leaf.name!r}")
        dtype, device, _ = leaf.kind
        leaves.append(_tensor(leaf.name, given.pop(leaf.name), dtype).to(device))
    if given:
        names = ", ".join(leaf.name for leaf in form.leaves)
        raise BadRequest(f"there is an input {next(iter(given))!r}; the inputs are {names}")
    args, kwargs = form.structure.put_together(leaves)
    return args, kwargs


def reply_of(results: Any, kind: str) -> bytes:
    """The results of a call, by name: `output` for one alone, else their keys and places."""
    named = dict(named_leaves(results))
    if kind == SAFETENSORS:
        tensors = {name: value.contiguous() for name, value in named.items() if isinstance(value, Tensor)}
        return safetensors.torch.save({name: tensor.clone() for name, tensor in tensors.items()})  # some share memory
    plain = {name: _plain(value.tolist() if isinstance(value, Tensor) else value) for name, value in named.items()}
    return json.dumps({"outputs": plain}, allow_nan=False).encode()


def _from_json(body: bytes) -> dict[str, Any]:
    try:
        data = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"it is not JSON: {error}") from error
    if not isinstance(data, dict) or set(data) != {"inputs"} or not isinstance(data["inputs"], dict):
        raise BadRequest('it is not {"inputs": {"NAME": [...]}}')
    return dict(data["inputs"])


def _from_safetensors(body: bytes) -> dict[str, Any]:
    try:
        return dict(safetensors.torch.load(body))
    except KeyError as error:  # of its table
        raise BadRequest(f"torch has no dtype {error.args[0]}") from error
    except (SafetensorError, ValueError, RuntimeError, TypeError, OverflowError) as error:
        raise BadRequest(f"it is not safetensors: {str(error).partition(chr(10))[0]}") from error


def _tensor(name: str, given: Any, dtype: torch.dtype) -> Tensor:
    if isinstance(given, Tensor):
        return given
    try:
        return torch.tensor(_numbers(given, dtype), dtype=dtype)
    except (ValueError, TypeError, RuntimeError, OverflowError, RecursionError) as error:
        reason = str(error).partition("\n")[0]
        raise BadRequest(f"input {name!r} is not a tensor of {str(dtype).removeprefix('torch.')}: {reason}") from error


_SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def _numbers(data: Any, dtype: torch.dtype) -> Any:
    """Nested lists of numbers. JSON has no word for what is not a finite number; those are texts here.

    Raises: ValueError for what is no number, and for one that a tensor of this dtype would hold as another one.
    """
    if isinstance(data, list):
        return [_numbers(item, dtype) for item in data]
    if isinstance(data, str):
        if data not in _SPECIAL:
            raise ValueError(f"{data[:20]!r} is not a number")
        data = _SPECIAL[data]
    if not isinstance(data, int | float):
        raise ValueError(f"a {type(data).__name__} is not a number")
    if dtype is torch.bool and data not in (0, 1):
        raise ValueError(f"{data} is neither true nor false")
    if dtype.is_floating_point or dtype.is_complex or dtype is torch.bool:
        return data
    if isinstance(data, float) and not data.is_integer():
        raise ValueError(f"{data} is not a whole number")
    info = torch.iinfo(dtype)
    if not info.min <= data <= info.max:
        raise ValueError(f"{data} is not within {info.min} and {info.max}")
    return data


def _plain(data: Any) -> Any:
    if isinstance(data, list):
        return [_plain(item) for item in data]
    if isinstance(data, float) and not math.isfinite(data):
        return "NaN" if math.isnan(data) else "Infinity" if data > 0 else "-Infinity"
    return data if isinstance(data, int | float | str | type(None)) else str(data)
