"""Which kind of call it is: the key by which programs are kept, and a cheaper check for a call like the last one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dovetail.capture.module_state import TensorSlot
from dovetail.frontends.inputs import check_tensor
from dovetail.frontends.reach import Reach
from dovetail.frontends.structure import Structure
from dovetail.ir.text import identifier
from dovetail.reach.contents import value_key
from dovetail.torch_compat.guards import SameTensors
from dovetail.torch_compat.subclasses import is_wrapper, take_apart


def leaf_key(item: Any, first: dict[int, int], place: int, dynamic: bool) -> object:
    """What a kind says of one argument. first: where each tensor, by identity, was met first; it is added to."""
    if not isinstance(item, torch.Tensor):
        return value_key(item)
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

    def __init__(self, spec: Structure, everything: Sequence[Any], modes: object) -> None:
        """Remember a call. everything: its tensors and other arguments; see `can_tell`."""
        self._spec = spec
        self._modes = modes
        self._places = [place for place, item in enumerate(everything) if isinstance(item, torch.Tensor)]
        tensors = [everything[place] for place in self._places]
        self._same = SameTensors(tensors)
        self._ids = list(map(id, tensors))
        self._leaves = [(place, x.is_leaf) for place, x in zip(self._places, tensors, strict=True) if _may_be_both(x)]
        self._plain = [(k, value_key(x)) for k, x in enumerate(everything) if not isinstance(x, torch.Tensor)]

    @staticmethod
    def can_tell(everything: Sequence[Any]) -> bool:
        """Whether the question below is enough: no tensor is passed twice, and none is made of others."""
        tensors = [item for item in everything if isinstance(item, torch.Tensor)]
        return len(set(map(id, tensors))) == len(tensors) and not any(map(is_wrapper, tensors))

    def holds(self, spec: Structure, everything: Sequence[Any], modes: object) -> bool:
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
            if value_key(everything[place]) != key:
                return False
        return bool(modes == self._modes and spec == self._spec)


def _may_be_both(tensor: torch.Tensor) -> bool:
    """Whether tensors like this may be leaves or not."""
    return tensor.requires_grad and not isinstance(tensor, torch.nn.Parameter)


@dataclass(frozen=True, slots=True)
class Call:
    """leaves: the arguments, flat. tensors: what the modules hold. modes: of torch, that decide what a program is."""

    reach: Reach
    leaves: list[Any]
    spec: Structure
    tensors: list[torch.Tensor]
    everything: list[Any]
    modes: tuple[object, ...]

    def key(self, dynamic: bool) -> tuple[object, ...]:
        """The kind of call. dynamic: sizes do not matter. Raises: DovetailError for tensors that are not supported."""
        first: dict[int, int] = {}
        try:
            described = tuple(leaf_key(x, first, place, dynamic) for place, x in enumerate(self.everything))
        except RuntimeError:  # it has no strides, or no shape yet
            for place, item in enumerate(self.everything):
                checked_name(self.reach.slots, place, item)
            raise
        return (self.spec, described, (id(self.reach), self.modes), self.held_gradients())

    def held_gradients(self) -> tuple[int, ...]:
        """Tensors with a gradient, by place, when the code reads `.grad`: stand-ins have none."""
        if not self.reach.state.reads_gradients:
            return ()
        leaves = ((place, x) for place, x in enumerate(self.everything) if isinstance(x, torch.Tensor) and x.is_leaf)
        return tuple(place for place, x in leaves if x.grad is not None)

    def distinct_tensors(self) -> list[int]:
        """Places of the tensors, each object once."""
        first = {id(x): k for k, x in reversed(list(enumerate(self.everything))) if isinstance(x, torch.Tensor)}
        return sorted(first.values())


def checked_name(slots: Sequence[TensorSlot], place: int, item: Any) -> str:
    """The name of what is at a place of a call. Raises: DovetailError for a tensor that is not supported."""
    position = place - len(slots)
    name = f"arg_{position}" if position >= 0 else identifier(slots[place].name.replace(".", "_"))
    if isinstance(item, torch.Tensor):
        check_tensor(name, item)
    return name
