"""What a caller sees of a call: outputs, gradients, what was written, what shares memory, the random generator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from dovetail.torch_compat.dispatch import storage_key
from tests.harness.agreement import Observation
from tests.opdb.calls import Call

VALUES = "values"
BACKWARD_RAISES = "backward raises"


def observe(call: Call, function: Callable[..., Any]) -> Observation:
    """Make the call through `function`, run backward with random gradients, and note everything by label."""
    torch.manual_seed(0)
    results = function(*call.args, **call.kwargs)
    seen: Observation = {"generator after the call": torch.get_rng_state()}
    flat, structure = pytree.tree_flatten(results)
    seen["structure of the results"] = str(structure)
    outputs = {f"output {place}": value for place, value in enumerate(flat)}
    for label, value in {**outputs, **call.watched}.items():
        _note(seen, label, value)
    seen["same objects"], seen["shared bytes"] = _sharing({**call.watched, **outputs})
    _note_gradients(seen, call, [value for value in flat if isinstance(value, Tensor)])
    seen["generator after backward"] = torch.get_rng_state()
    return seen


def _note(seen: Observation, label: str, value: object) -> None:
    if not isinstance(value, Tensor):
        seen[f"{label} {VALUES}"] = repr(value)
        return
    seen[f"{label} dtype, shape"] = (value.dtype, tuple(value.shape))
    seen[f"{label} layout, device"] = (value.layout, value.device)
    seen[f"{label} requires_grad"] = value.requires_grad
    seen[f"{label} {VALUES}"] = _values(value)
    if value.layout == torch.strided:
        seen[f"{label} strides"] = _strides(value)
        seen[f"{label} conjugate and negative bits"] = (value.is_conj(), value.is_neg())


def _strides(tensor: Tensor) -> tuple[int, ...]:
    """Strides, with 0 where they say nothing: in dimensions of one element, and in a tensor of none."""
    return tuple(
        step if size > 1 and tensor.numel() else 0 for step, size in zip(tensor.stride(), tensor.shape, strict=True)
    )


def _values(tensor: Tensor) -> Tensor:
    plain = tensor.detach()
    plain = plain.dequantize() if plain.is_quantized else plain
    plain = plain.to_dense() if plain.layout != torch.strided else plain
    return plain.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)


def _sharing(tensors: dict[str, Any]) -> tuple[list[tuple[str, str]], list[tuple[str, str, int]]]:
    """Which labels name one object, and which share bytes, and how far apart they begin."""
    held = [
        (label, value)
        for label, value in tensors.items()
        if isinstance(value, Tensor) and value.layout == torch.strided and value.numel()
    ]
    same, shared = [], []
    for place, (label, value) in enumerate(held):
        for other, earlier in held[:place]:
            if value is earlier:
                same.append((other, label))
            if storage_key(value) == storage_key(earlier):
                shared.append((other, label, value.data_ptr() - earlier.data_ptr()))
    return same, shared


def _note_gradients(seen: Observation, call: Call, results: list[Tensor]) -> None:
    """Gradients of the leaves, with a random gradient for each result that requires one."""
    made = [value for value in (*results, *call.watched.values()) if value.requires_grad and value.grad_fn is not None]
    ends = list({id(value): value for value in made}.values())
    if not ends or not call.leaves:
        return
    generator = torch.Generator().manual_seed(0)
    arriving = [torch.randn(end.shape, generator=generator, dtype=end.dtype) for end in ends]
    try:
        gradients = torch.autograd.grad(ends, list(call.leaves.values()), arriving, allow_unused=True)
    except Exception as error:
        seen[BACKWARD_RAISES] = Raised(error)
        return
    for label, gradient in zip(call.leaves, gradients, strict=True):
        _note(seen, f"gradient of {label}", gradient)


@dataclass(frozen=True, slots=True)
class Raised:
    """Any error is as good as another."""

    error: Exception = field(compare=False)
