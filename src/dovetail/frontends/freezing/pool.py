"""The tensors that frozen programs hold: constants, and the state that the programs write.

Every tensor has one name, the same in all programs: its dotted name in the model, or the one under which folding made
it. Tensors that share memory in the model share it here; nothing is copied but state.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch

from dovetail.capture.module_state import TensorSlot
from dovetail.ir.text import identifier


@dataclass(frozen=True, slots=True)
class Packed:
    """A constant in packed form, and its strides in plain form."""

    tensor: torch.Tensor
    stride: tuple[int, ...]

    def unpacked(self) -> torch.Tensor:
        """The constant as it was, each bit of it."""
        plain = self.tensor.to_dense()
        made = torch.empty_strided(plain.shape, self.stride, dtype=plain.dtype)
        return plain if plain.stride() == self.stride else made.copy_(plain)


@dataclass(slots=True)
class Pool:
    """tensors: by name in programs. origins: for those of the model, by that name, their dotted names in it.

    state: names of those that a program writes or hands out, and which nothing is folded into. unused: dotted names of
    what the model has and no program reads. packed: constants that are held in packed form only.
    """

    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    origins: dict[str, tuple[str, ...]] = field(default_factory=dict)
    state: frozenset[str] = frozenset()
    unused: frozenset[str] = frozenset()
    packed: dict[str, Packed] = field(default_factory=dict)
    _names: dict[int, str] = field(default_factory=dict)
    _held: list[torch.Tensor] = field(default_factory=list)

    def name_of(self, tensor: torch.Tensor, dotted: str) -> str:
        """The name of a tensor of the model, which is taken in when it is new. dotted: where the model has it."""
        name = self._names.get(id(tensor))
        if name is None:
            wish = name = identifier(dotted.replace(".", "_"))
            count = 1
            while name in self.tensors:
                name, count = f"{wish}_{count}", count + 1
            self._names[id(tensor)] = name
            self._held.append(tensor)  # so that no other tensor gets its id
            self.tensors[name] = tensor.detach()
            self.origins[name] = (dotted,)
        elif dotted not in self.origins[name]:
            self.origins[name] = (*self.origins[name], dotted)
        return name

    def note_slots(self, slots: Iterable[TensorSlot]) -> None:
        """Give tensors that are known already all the dotted names under which a model holds them."""
        for slot in slots:
            if id(slot.read()) in self._names:
                self.name_of(slot.read(), slot.name)

    def settle(self, state: Iterable[str], *, own: bool) -> None:
        """Everything that will be held is known. own: constants get memory of their own as well."""
        self.state = frozenset(state)
        self._names.clear()
        self._held.clear()
        for name, tensor in self.tensors.items():
            if own or name in self.state:
                self.tensors[name] = copy_of(tensor)

    def stored(self) -> dict[str, torch.Tensor]:
        """All of them as they are stored, those that were let go of unpacked again: each bit is what it was."""
        return {**self.tensors, **{name: packed.unpacked() for name, packed in self.packed.items()}}

    @property
    def constants(self) -> frozenset[str]:
        """The names of tensors that never change."""
        return frozenset(self.tensors) - self.state


def size_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of the storages behind tensors, each once; of packed ones, of their elements."""
    everything = {id(tensor): tensor for tensor in tensors}.values()
    plain = [tensor for tensor in everything if tensor.layout is torch.strided]
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in plain}
    packed = [tensor for tensor in everything if tensor.layout is not torch.strided]
    return sum(storages.values()) + sum(tensor.numel() * tensor.element_size() for tensor in packed)


def copy_of(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in memory of its own, with the same strides."""
    made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    overlapping = any(step == 0 and size > 1 for step, size in zip(tensor.stride(), tensor.shape, strict=True))
    return tensor.detach().clone() if overlapping else made.copy_(tensor.detach())
