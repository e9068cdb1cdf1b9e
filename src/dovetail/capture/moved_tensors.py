"""The part of the recorder that lets a tensor object stand for other memory; see `capture.resizing`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import NoReturn

import torch

from dovetail.capture.origins import OriginTracker
from dovetail.errors import UnsupportedInputMutation
from dovetail.ir.program import Meta, Node, Operand, Phase, TensorMeta, Value
from dovetail.torch_compat.dispatch import Overload, storage_key


class MovesTensors(ABC):
    """See the module docstring. What it works on is the recorder's."""

    nodes: list[Node]
    phase: Phase
    _origins: OriginTracker
    _storages: dict[int, int]
    _storage_numbers: Iterator[int]
    _tensors: dict[Value, list[torch.Tensor]]
    _given: set[int]
    _alive: list[object]

    def new_storage(self) -> int:
        """A storage number that no value of this recording has."""
        return next(self._storage_numbers)

    @abstractmethod
    def _describe(self, tensor: torch.Tensor, name: str) -> Meta: ...

    @abstractmethod
    def _fresh_name(self, base: str) -> str: ...

    @abstractmethod
    def _bind(self, tensor: torch.Tensor, value: Value) -> Value: ...

    def value_on(self, storage: int) -> Value | None:
        """The first value on the storage of a tensor."""
        number = self._storages.get(storage)
        return next((value for value in self._tensors if value.is_tensor and value.tensor.storage == number), None)

    def is_given(self, value: Value) -> bool:
        """Whether its memory was there before."""
        return value.tensor.storage in self._given

    def described(self, tensor: torch.Tensor, *, on_new_storage: bool) -> TensorMeta:
        """What a tensor is like now."""
        if on_new_storage:
            self._storages[storage_key(tensor)] = self.new_storage()
            self._alive.append(tensor.untyped_storage())
        meta = self._describe(tensor, "tensor")
        assert isinstance(meta, TensorMeta), "it describes a tensor"
        return meta

    def made(self, name: str, meta: TensorMeta) -> Value:
        """A new value, for which no tensor stands."""
        return Value(self._fresh_name(name), meta)

    def rebind(self, tensor: torch.Tensor, name: str, meta: TensorMeta) -> Value:
        """A new value, for which a tensor stands from now on."""
        return self._bind(tensor, self.made(name, meta))

    def emit(self, target: Overload, args: tuple[Operand, ...], kwargs: Mapping[str, Operand], value: Value) -> None:
        """Append a node with one result, or with none if that is an operand."""
        outputs = () if any(argument is value for argument in args) else (value,)
        origin = self._origins.here()
        self.nodes.append(Node(target, args, tuple(kwargs.items()), outputs, phase=self.phase, origin=origin))

    def refuse_memory(self, what: str, value: Value) -> NoReturn:
        """Raise UnsupportedInputMutation."""
        raise UnsupportedInputMutation(what=what, name=value.name, origin=self._origins.here())
