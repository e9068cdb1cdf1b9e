"""Results of calls on tensors without data, by their operands: repeated layers are computed once.

It lives as long as one file is read, and is keyed by exact types: `1`, `1.0` and `True` are three operands.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dovetail.ir.program import Target
from dovetail.torch_compat.dispatch import storage_key

_META = torch.device("meta")


@dataclass(frozen=True, slots=True)
class _Result:
    """A tensor that a call gave. memory: the place of the first operand with this storage; after those, new ones."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    memory: int


class KnownResults:
    """Results of calls with operands on the meta device."""

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[_Result, ...]] = {}
        self._agreed: set[Hashable] = set()

    def run(self, target: Target, args: Sequence[Any], kwargs: Sequence[tuple[str, Any]], unpack: bool) -> list[Any]:
        """What the call gives, one item for each result. Raises: what the operator raises."""
        tensors: list[torch.Tensor] = []
        key = (target, unpack, _key((args, kwargs), tensors))
        known = self._known.get(key)
        if known is not None:
            return _rebuilt(known, tensors)
        result: Any = target(*args, **dict(kwargs))
        results = list(result) if unpack else [result]
        if all(map(_is_described, (*tensors, *results))):
            self._known[key] = _described(results, tensors)
        return results

    def has_agreed(self, call: object) -> bool:
        """Whether the description of this call's results was found true before."""
        return _key(call, []) in self._agreed

    def agree(self, call: object) -> None:
        """The description of this call's results is true."""
        self._agreed.add(_key(call, []))


def _is_described(item: object) -> bool:
    """Whether this is a strided tensor without memory."""
    return isinstance(item, torch.Tensor) and item.is_meta and item.layout is torch.strided


def _key(operand: object, tensors: list[torch.Tensor]) -> Hashable:
    """Operands with their types. Tensors, by layout, by the first of them with the same memory, and by its size."""
    if isinstance(operand, torch.Tensor):
        storage = storage_key(operand)
        place = next((i for i, one in enumerate(tensors) if storage_key(one) == storage), len(tensors))
        tensors.append(operand)
        layout = (operand.dtype, tuple(operand.shape), operand.stride(), operand.storage_offset())
        return (*layout, place, operand.untyped_storage().nbytes())
    if isinstance(operand, list | tuple):
        return (type(operand), *[_key(item, tensors) for item in operand])
    return (type(operand), repr(operand) if isinstance(operand, float | complex) else operand)


def _described(results: Sequence[torch.Tensor], operands: Sequence[torch.Tensor]) -> tuple[_Result, ...]:
    memories: dict[int, int] = {}
    for place, operand in enumerate(operands):
        memories.setdefault(storage_key(operand), place)
    found = []
    for result in results:
        new = max(len(operands), 1 + max(memories.values(), default=-1))
        memory = memories.setdefault(storage_key(result), new)
        shape, stride = tuple(result.shape), result.stride()
        found.append(_Result(shape, stride, int(result.storage_offset()), result.dtype, memory))
    return tuple(found)


def _rebuilt(known: Sequence[_Result], operands: Sequence[torch.Tensor]) -> list[Any]:
    made: dict[int, torch.Tensor] = dict(enumerate(operands))
    results = []
    for one in known:
        tensor = torch.empty(0, dtype=one.dtype, device=_META)
        memory = made.setdefault(one.memory, tensor)
        results.append(tensor.set_(memory.untyped_storage(), one.offset, one.shape, one.stride))
    return results
