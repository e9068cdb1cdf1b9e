"""The model that a program was frozen from: watched for changes, and emptied when its memory is wanted.

A watched model is not kept alive. What cannot be seen: a write through `.data` of a tensor that is kept elsewhere, and
writes to memory that another library shares.
"""

from __future__ import annotations

import datetime
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dovetail.capture.module_state import TensorSlot
from dovetail.errors import BadWeights, DiscardedParameter
from dovetail.torch_compat.autograd import version_of


@dataclass(frozen=True, slots=True)
class _Watched:
    """A tensor of the model when it was frozen. name: in the pool."""

    name: str
    dotted: str
    module: weakref.ref[torch.nn.Module]
    table: str
    key: str
    seen: tuple[int, int, int]

    def now(self) -> torch.Tensor | None:
        """What the model holds in that place; None when there is nothing, or no model any more."""
        module = self.module()
        return None if module is None else module.__dict__[self.table].get(self.key)

    def has_changed(self) -> bool:
        """Whether the model, if there is one, holds another tensor, or other contents in it."""
        tensor = self.now()
        return _state_of(tensor) != self.seen if tensor is not None else self.module() is not None


class Originals:
    """Watches the tensors of a model from which constants were taken."""

    def __init__(self, watched: Sequence[_Watched]) -> None:
        self._watched = tuple(watched)

    @staticmethod
    def of(slots: Iterable[TensorSlot], names: Mapping[str, str]) -> Originals:
        """A watch of these slots. names: for dotted names of the model, the name in the pool; others are left out."""
        return Originals([_watched(slot, names[slot.name]) for slot in slots if slot.name in names])

    def changed(self) -> list[str]:
        """Dotted names of what has changed since it was looked at first."""
        return [watched.dotted for watched in self._watched if watched.has_changed()]

    def now(self) -> dict[str, torch.Tensor]:
        """What the model holds in place of the constants, by dotted name. Raises: BadWeights when one is gone."""
        found: dict[str, torch.Tensor] = {}
        for watched in self._watched:
            tensor = watched.now()
            if tensor is None:
                raise BadWeights(reason=f"the model has no {watched.dotted} any more", hint="freeze the new model")
            found[watched.dotted] = tensor
        return found

    def renewed(self) -> Originals:
        """A watch from now on."""
        return Originals([_again(watched) for watched in self._watched])


def _watched(slot: TensorSlot, name: str) -> _Watched:
    return _Watched(name, slot.name, weakref.ref(slot.module), slot.table, slot.key, _state_of(slot.read()))


def _again(watched: _Watched) -> _Watched:
    tensor = watched.now()
    seen = watched.seen if tensor is None else _state_of(tensor)
    return _Watched(watched.name, watched.dotted, watched.module, watched.table, watched.key, seen)


def _state_of(tensor: torch.Tensor) -> tuple[int, int, int]:
    return (id(tensor), -1 if tensor.is_inference() else version_of(tensor), tensor.data_ptr())


# --- tombstones -----------------------------------------------------------------------------------------------------

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


def discard(slots: Sequence[TensorSlot], model: str, hint: str) -> None:
    """Put a tombstone in place of every parameter. model: its class. hint: how to get the parameters back."""
    when = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    made: dict[int, Tombstone] = {}
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
        slot.place(made[id(tensor)])
