"""Models whose parameters were moved to a frozen program: their replacements, and restoring them."""

from __future__ import annotations

import datetime
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dovetail.capture.module_state import TensorSlot
from dovetail.errors import DiscardedParameter

# What says nothing of the contents, and what `load_state_dict(assign=True)` asks before it puts a tensor back.
_DESCRIPTION = ("shape", "dtype", "device", "layout", "ndim", "is_meta", "requires_grad", "is_leaf", "grad")
_QUESTIONS: frozenset[Any] = frozenset(
    [getattr(torch.Tensor, name).__get__ for name in _DESCRIPTION]
    + [torch.Tensor.requires_grad.__set__]  # type: ignore[attr-defined]
    + [torch.Tensor.dim, torch.Tensor.size, torch.Tensor.numel, torch.Tensor.is_floating_point, torch.Tensor.is_complex]
)


class Tombstone(torch.nn.Parameter):
    """In place of a parameter that was discarded: any use but asking what it looked like raises."""

    facts: Mapping[str, str]

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        if func in _QUESTIONS:
            return super().__torch_function__(func, types, args, kwargs or {})
        leaves = [*args, *(kwargs or {}).values()]
        found = next((leaf for leaf in _flat(leaves) if isinstance(leaf, Tombstone)), None)
        raise DiscardedParameter(**(found.facts if found is not None else {}))

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Tombstone({self.facts.get('name')}, discarded on {self.facts.get('when')})"


def _flat(items: Iterable[Any]) -> Iterable[Any]:
    for item in items:
        if isinstance(item, tuple | list):
            yield from _flat(item)
        else:
            yield item


@dataclass(frozen=True, slots=True)
class Discarded:
    """Parameters that were discarded: where each was, and itself as long as it lives."""

    places: tuple[tuple[TensorSlot, weakref.ref[torch.Tensor]], ...]

    def put_back(self, tensors: Mapping[str, torch.Tensor]) -> tuple[str, ...]:
        """Undo it. tensors: what is left of them, by dotted name. Returns: the names of those that are lost."""
        made: dict[int, torch.nn.Parameter] = {}
        lost = []
        for slot, original in self.places:
            stone, tensor = slot.read(), original()
            if tensor is None and slot.name in tensors and id(stone) not in made:
                made[id(stone)] = torch.nn.Parameter(tensors[slot.name], requires_grad=stone.requires_grad)
            tensor = tensor if tensor is not None else made.get(id(stone))
            if tensor is None:
                lost.append(slot.name)
            else:
                slot.place(tensor)
        return tuple(lost)


def discard(slots: Sequence[TensorSlot], model: str, hint: str) -> Discarded:
    """Put a tombstone in place of every parameter. model: its class. hint: how to get the parameters back."""
    when = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    made: dict[int, Tombstone] = {}
    places = []
    for slot in slots:
        if slot.table != "_parameters":
            continue
        tensor = slot.read()
        if id(tensor) not in made:
            meta = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
            stone = Tombstone(meta, requires_grad=tensor.requires_grad)
            owner = type(slot.module).__name__
            stone.facts = {"name": slot.name, "module": f"{owner} in {model}", "when": when, "hint": hint}
            made[id(tensor)] = stone
        places.append((slot, weakref.ref(tensor)))
        slot.place(made[id(tensor)])
    return Discarded(tuple(places))
