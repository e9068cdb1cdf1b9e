"""Which kind of call it is: the key by which programs are kept, and a cheaper question for a call like the last one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dovetail.capture.python_state import plain_key
from dovetail.frontends.structure import Structure
from dovetail.torch_compat.guards import SameTensors
from dovetail.torch_compat.subclasses import is_wrapper, take_apart


def leaf_key(item: Any, first: dict[int, int], place: int, dynamic: bool) -> object:
    """What a kind says of one argument. first: where each tensor, by identity, was met first; it is added to."""
    if not isinstance(item, torch.Tensor):
        return plain_key(item)
    return (
        first.setdefault(id(item), place),
        item.dim() if dynamic else (item.shape, item.stride()),
        item.dtype,
        item.device,
        item.requires_grad,
        item.is_leaf,
        item.is_conj(),
        item.is_neg(),
        type(item),
        _parts_key(item) if is_wrapper(item) else None,
    )


def _parts_key(wrapper: torch.Tensor) -> object:
    parts, layout = take_apart(wrapper)
    return (layout.key(), tuple((part.shape, part.stride(), part.dtype, part.device) for part in parts))


class SameKind:
    """Recognises calls of the kind of one call, for a part of what the key costs."""

    def __init__(self, spec: Structure, everything: Sequence[Any], snapshot: object) -> None:
        """Remember a call. everything: its tensors and other arguments; see `can_tell`."""
        self._spec = spec
        self._snapshot = snapshot
        self._places = [place for place, item in enumerate(everything) if isinstance(item, torch.Tensor)]
        tensors = [everything[place] for place in self._places]
        self._same = SameTensors(tensors)
        self._ids = list(map(id, tensors))
        self._leaves = [(place, x.is_leaf) for place, x in zip(self._places, tensors, strict=True) if _may_be_both(x)]
        self._plain = [(k, plain_key(x)) for k, x in enumerate(everything) if not isinstance(x, torch.Tensor)]

    @staticmethod
    def can_tell(everything: Sequence[Any]) -> bool:
        """Whether the question below is enough: no tensor is passed twice, and none is made of others."""
        tensors = [item for item in everything if isinstance(item, torch.Tensor)]
        return len(set(map(id, tensors))) == len(tensors) and not any(map(is_wrapper, tensors))

    def holds(self, spec: Structure, everything: Sequence[Any], snapshot: object) -> bool:
        """Whether a call is of this kind. False may be wrong."""
        if len(everything) != len(self._places) + len(self._plain):
            return False
        tensors = [everything[place] for place in self._places]
        ids = list(map(id, tensors))
        if ids != self._ids:
            if len(set(ids)) < len(ids):
                return False
            for tensor in tensors:
                if not isinstance(tensor, torch.Tensor):
                    return False
        if not self._same.are(tensors):
            return False
        for place, is_leaf in self._leaves:
            if everything[place].is_leaf is not is_leaf:
                return False
        for place, key in self._plain:
            if plain_key(everything[place]) != key:
                return False
        return bool(snapshot == self._snapshot and spec == self._spec)


def _may_be_both(tensor: torch.Tensor) -> bool:
    """Whether tensors like this may be leaves or not."""
    return tensor.requires_grad and not isinstance(tensor, torch.nn.Parameter)


def distinct_tensors(items: Sequence[Any]) -> list[int]:
    """Indices of the tensors, each object once."""
    seen: set[int] = set()
    found = []
    for index, item in enumerate(items):
        if isinstance(item, torch.Tensor) and id(item) not in seen:
            seen.add(id(item))
            found.append(index)
    return found
