"""The part of the recorder that lets a tensor object stand for other memory; see `capture.resizing`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

import torch

from dovetail.capture.origins import OriginTracker
from dovetail.capture.resizing import change
from dovetail.capture.views_of_written import ViewsOfWritten
from dovetail.errors import UnsupportedInputMutation
from dovetail.ir.program import Meta, Node, Operand, Phase, TensorMeta, Value
from dovetail.ops.facts import may_resize, resizes_storage
from dovetail.torch_compat.autograd import viewed_tensor
from dovetail.torch_compat.dispatch import Overload, overloads, schema_of, storage_key
from dovetail.torch_compat.fakes import is_fake


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
    constants: list[tuple[torch.Tensor, Value]]
    views: ViewsOfWritten
    metadata_changes: list[tuple[torch.Tensor, Overload, tuple[Operand, ...]]]

    def has_views(self, tensor: torch.Tensor) -> bool:
        """Whether there are other views of what this one is a view of, which may be itself."""
        viewed = viewed_tensor(tensor)
        others = (made for found in self._tensors.values() for made in found if made is not tensor)
        return any(made is not viewed and viewed_tensor(made) is viewed for made in others)

    def new_storage(self) -> int:
        """A storage number that no value of this recording has."""
        return next(self._storage_numbers)

    @abstractmethod
    def value_of(self, tensor: torch.Tensor) -> Value:
        """The value that a tensor stands for."""

    @abstractmethod
    def operand_of(self, argument: object) -> Operand:
        """An operator argument as an operand of the IR."""

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

    def has_made(self, tensor: torch.Tensor) -> bool:
        """Whether the memory of a tensor was not there before."""
        return is_fake(tensor) and not self.is_given(self.value_of(tensor))

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

    def resize_storage(self, func: Overload, args: Sequence[Any]) -> Any:
        """The bytes under a tensor are freed, or come back with any contents: programs free bytes when they can.

        Of an input, what counts is how many there are in the end; who looks at inputs then asks its fake.
        """
        value = self.value_of(args[0])
        if any(value.tensor.storage == constant.tensor.storage for _, constant in self.constants):
            self.refuse_memory("the size of the storage", value)
        return func(*args)

    def refuse_memory(self, what: str, value: Value) -> NoReturn:
        """Raise UnsupportedInputMutation."""
        raise UnsupportedInputMutation(what=what, name=value.name, origin=self._origins.here())

    def _record_metadata_change(self, func: Overload, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """`y.t_()`: from now on the object `y` stands for the view `y.t()` of the value it stood for."""
        if resizes_storage(func):
            return self.resize_storage(func, args)
        tensor = args[0]
        schema = schema_of(func)
        if may_resize(func):
            return change(self, func, args, kwargs)
        view = next(
            (
                candidate
                for candidate in overloads(schema.namespace, schema.name.rstrip("_"))
                if [a.type for a in schema_of(candidate).arguments] == [a.type for a in schema.arguments]
            ),
            None,
        )
        assert view is not None, f"{func} has no view form"
        operands = tuple(self.operand_of(a) for a in args)
        before = tensor.shape
        result = func(*args, **kwargs)
        self.metadata_changes.append((tensor, func, operands[1:]))
        value = Value(self._fresh_name(schema.name.rstrip("_")), self._describe(tensor, schema.name))
        self._bind(tensor, value)
        self.views.reshape(tensor, before)
        self.nodes.append(Node(view, operands, (), (value,), phase=self.phase, origin=self._origins.here()))
        return result
