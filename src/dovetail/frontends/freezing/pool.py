"""The tensors that frozen programs hold: constants, and the state that the programs write.

Every tensor has one name, the same in all programs: its dotted name in the model, or the name that folding
gave it. Tensors that share memory in the model share it here; nothing is copied but state.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

import torch

from dovetail.capture.module_state import TensorSlot
from dovetail.ir.draft import free_name
from dovetail.ir.program import TensorMeta
from dovetail.ir.text import identifier
from dovetail.ops.packing import unpacked
from dovetail.pipeline.differential import same_bits
from dovetail.torch_compat.dispatch import storage_key


@dataclass(frozen=True, slots=True)
class Packed:
    """A constant in packed form, and its shape and strides in plain form."""

    tensor: torch.Tensor
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    def unpacked(self) -> torch.Tensor:
        """The constant as it was, each bit of it."""
        return with_strides(unpacked(self.tensor, self.shape), self.stride)


@dataclass(slots=True)
class Pool:
    """tensors: by name in programs. origins: for those of the model, by that name, their dotted names in it.

    state: names of those that a program writes or hands out, and which nothing is folded into. unused: dotted names of
    what the model has and no program reads. packed: constants that are held in packed form only. given: the tensors
    that were taken in, themselves, until all are settled.
    """

    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    origins: dict[str, tuple[str, ...]] = field(default_factory=dict)
    state: frozenset[str] = frozenset()
    unused: frozenset[str] = frozenset()
    packed: dict[str, Packed] = field(default_factory=dict)
    given: dict[str, torch.Tensor] = field(default_factory=dict)
    _names: dict[int, str] = field(default_factory=dict)
    _dotted: set[str] = field(default_factory=set)

    def name_of(self, tensor: torch.Tensor, dotted: str) -> str:
        """The name of a tensor of the model, which is taken in when it is new. dotted: where the model has it."""
        name = self._names.get(id(tensor))
        if name is None:
            name = free_name(identifier(dotted.replace(".", "_")), self.tensors)
            self._names[id(tensor)] = name
            self.given[name] = tensor  # alive, so that no other tensor gets its id
            self.tensors[name] = tensor.detach()
            self.origins[name] = (name if dotted in self._dotted else dotted,)
            self._dotted.update(self.origins[name])
        elif dotted not in self.origins[name]:
            self.origins[name] = (*self.origins[name], dotted)
            self._dotted.add(dotted)
        return name

    def note_slots(self, slots: Iterable[TensorSlot]) -> None:
        """Give tensors that are known already all the dotted names under which a model holds them."""
        for slot in slots:
            if id(slot.read()) in self._names:
                self.name_of(slot.read(), slot.name)

    def sharing(self, names: Iterable[str]) -> frozenset[str]:
        """These, and every tensor that shares a storage with one of them."""
        wanted = frozenset(names)
        keys = {storage_key(self.tensors[name]) for name in wanted if has_storage(self.tensors[name])}
        return wanted | {n for n, t in self.tensors.items() if has_storage(t) and storage_key(t) in keys}

    def settle(self, state: Iterable[str], *, own: Collection[str]) -> None:
        """Everything that will be held is known. own: constants that get memory of their own, as state does."""
        self.state = frozenset(state)
        self._names.clear()
        self.given.clear()
        self.tensors |= copies_of({name: self.tensors[name] for name in self.state})
        self.tensors |= copies_of({name: self.tensors[name] for name in own if name not in self.state})

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


def has_storage(tensor: torch.Tensor) -> bool:
    """Whether the tensor lies in memory that can be looked at (packed ones do not)."""
    return tensor.layout is torch.strided


def with_strides(tensor: torch.Tensor, stride: tuple[int, ...]) -> torch.Tensor:
    """The tensor with these strides, a copy where it has others; elements may share memory (expanded tensors).

    Raises: ValueError where elements that would share memory differ.
    """
    if tensor.stride() == stride:
        return tensor
    made = torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype, device=tensor.device)
    if not TensorMeta(tuple(made.shape), stride, 0, made.dtype, made.device, 0).overlaps_itself():
        return made.copy_(tensor)
    memory = made.as_strided((1 + sum((size - 1) * step for size, step in zip(made.shape, stride, strict=True)),), (1,))
    places = torch.arange(len(memory), device=tensor.device).as_strided(made.shape, stride)
    memory[places.flatten()] = tensor.flatten()
    if not same_bits(made.contiguous(), tensor.contiguous()):
        raise ValueError("elements of it that share memory would differ")
    return made


def copy_of(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in memory of its own, with the same strides, also where elements of it share memory."""
    (found,) = copies_of({"": tensor}).values()
    return found


def copies_of(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors in memory of their own, with the same strides. Those that shared a storage share one again."""
    groups: dict[int, list[str]] = {}
    found: dict[str, torch.Tensor] = {}
    with torch.inference_mode(False), torch.no_grad():  # or nobody could write them outside that mode
        for name, tensor in tensors.items():
            if has_storage(tensor):
                groups.setdefault(storage_key(tensor), []).append(name)
            else:
                found[name] = tensor.detach().clone()
        for names in groups.values():
            found |= _together({name: tensors[name].detach() for name in names})
    return {name: found[name] for name in tensors}


def _together(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Copies of tensors of one storage: of the bytes that they span, as they lie."""
    spans = [_span(tensor) for tensor in tensors.values()]
    first, last = min(span[0] for span in spans), max(span[1] for span in spans)
    alike = max(tensor.dtype.itemsize for tensor in tensors.values())
    first -= first % alike
    some = next(iter(tensors.values()))
    storage = some.untyped_storage()
    whole = torch.empty(0, dtype=torch.uint8, device=some.device).set_(storage, first, (max(last - first, 0),), (1,))
    part = whole.clone().untyped_storage()
    found = {}
    for name, tensor in tensors.items():
        offset = tensor.storage_offset() - first // tensor.dtype.itemsize if tensor.numel() else 0
        made = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        made = made.set_(part, offset, tensor.shape, tensor.stride())
        made = made.conj() if tensor.is_conj() else made
        found[name] = torch.ops.aten._neg_view.default(made) if tensor.is_neg() else made
    return found


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """The bytes of its storage from the first element of a tensor to the last."""
    size = tensor.dtype.itemsize
    first = tensor.storage_offset() * size
    if not tensor.numel():
        return int(first), int(first)
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return int(first), int(first + (1 + sum((count - 1) * step for count, step in steps)) * size)
