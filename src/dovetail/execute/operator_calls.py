"""Calls of operators as they can be made apart from their program: operands described, and made anew for each run.

Operands that share memory in the program share it here (`shared_operands`).

Kernels trust positions, pivots and the memory of libraries, so tensors of whole numbers are zeros, and only operators
that are known to take these get them; an operator that reads what its partner left gets it from this one
(`ops.whole_numbers`). A call can be had at other sizes as well, which are changed alike wherever they occur.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import torch

from dovetail.execute.call_kinds import frozen, kind_of
from dovetail.execute.shared_operands import Sharing, Span, blocks_for, scaled_offset, shared_operands, tensor_in
from dovetail.ir.prim import Prim
from dovetail.ir.program import Node, Operand, ScalarMeta, TensorMeta, Value, map_operands
from dovetail.ir.sizes import Number, Scalar, evaluate, with_numbers
from dovetail.ops.collectives import WAIT
from dovetail.ops.facts import facts_of
from dovetail.ops.scaling import NUMBER, Axis, operand_names
from dovetail.ops.whole_numbers import (
    fill_whole_numbers,
    needs_other_numbers,
    operator_of,
    reads_of_partner,
    reads_of_partners,
    takes_zeros,
)
from dovetail.torch_compat.dispatch import schema_of
from dovetail.torch_compat.modes import matmul_precision

_CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class OperatorCall:
    """A node as it can be run. results: outputs that lie in new memory; None for others. is_safe: no kernel is given
    whole numbers that it may not expect. is_scaled: sizes are others than the node's, so results may be, too.
    """

    node: Node
    args: Sequence[Operand]
    kwargs: Mapping[str, Operand]
    results: tuple[Described | None, ...]
    is_safe: bool
    key: Hashable
    is_scaled: bool = False

    @property
    def tensors(self) -> list[Described]:
        """Operands, and results in new memory."""
        operands = _described_in((self.args, list(self.kwargs.values())))
        return [*operands, *(x for x in self.results if x is not None)]

    @property
    def device(self) -> torch.device:
        """Where all of them are."""
        return next((tensor.device for tensor in self.tensors), _CPU)

    @property
    def size_bytes(self) -> int:
        """Bytes of operands and results."""
        return sum(tensor.size_bytes for tensor in self.tensors)

    def scaled(self, sizes: Mapping[int, int]) -> OperatorCall:
        """The same call with other sizes, wherever they occur: in tensors and as numbers. sizes: by the present one."""
        args = [_scaled(x, sizes) for x in self.args]
        kwargs = {name: _scaled(x, sizes) for name, x in self.kwargs.items()}
        results = tuple(x and x.scaled(sizes) for x in self.results)
        key = ("scaled", _key(self.node, args, kwargs, _settings()))
        return OperatorCall(self.node, args, kwargs, results, self.is_safe, key, True)

    @property
    def numbers(self) -> list[int]:
        """Whole numbers among the operands."""
        return list(_numbers_in((self.args, list(self.kwargs.values()))))

    def size_along(self, axis: Axis) -> int | None:
        """The size of a dimension; None where operands differ in it."""
        found = set()
        for name, operand in self._named().items():
            dim = axis.get(name)
            if dim == NUMBER:
                found.add(operand)
            elif dim is not None and isinstance(operand, Described):
                found.add(operand.shape[dim] if len(operand.shape) > dim else None)
        size = found.pop() if len(found) == 1 else None
        return size if isinstance(size, int) else None

    def scaled_along(self, axis: Axis, old: int, new: int) -> OperatorCall:
        """The same call with another size of one dimension. Results have it where theirs was as large."""
        names = list(self._named())
        args = [_resized(x, axis.get(name), new) for name, x in zip(names, self.args, strict=False)]
        kwargs = {name: _resized(x, axis.get(name), new) for name, x in self.kwargs.items()}
        dim = max(axis.values())
        results = tuple(
            x.resized(dim, new) if x is not None and len(x.shape) > dim and x.shape[dim] == old else x
            for x in self.results
        )
        key = ("scaled", _key(self.node, args, kwargs, _settings()))
        return OperatorCall(self.node, args, kwargs, results, self.is_safe, key, True)

    def _named(self) -> dict[str, Operand]:
        return dict(zip(operand_names(self.node), self.args, strict=False)) | dict(self.kwargs)

    def operands(self) -> tuple[list[Any], dict[str, Any]]:
        """New tensors to apply the operator to. Raises: what the operators raise that make some of them."""
        described = _described_in((self.args, list(self.kwargs.values())))
        shared = [(x.sharing, x.size_bytes, x.dtype) for x in described if x.sharing is not None]
        blocks = blocks_for(shared, self.device) if shared else {}
        args = [_with_tensors(x, blocks) for x in self.args]
        kwargs = {name: _with_tensors(x, blocks) for name, x in self.kwargs.items()}
        fill_whole_numbers(self.node, dict(zip(operand_names(self.node), args, strict=False)) | kwargs)
        if isinstance(self.node.target, Prim) and self.node.target.prepared is not None:
            args = self.node.target.prepared(args)
        return args, kwargs

    def run(self) -> object:
        """Apply the operator to new tensors."""
        args, kwargs = self.operands()
        return self.node.target(*args, **kwargs)


@dataclass(frozen=True, slots=True)
class Described:
    """A tensor to be made. made_by: what makes it, and which of its results it is; else it is filled with a number.
    sharing: where it lies, if other operands of its call lie there as well.
    """

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    is_made: bool = False
    sharing: Sharing | None = None
    made_by: tuple[OperatorCall, int] | None = field(default=None, compare=False)

    @property
    def size_bytes(self) -> int:
        """Bytes from the first to the end of the last element."""
        if 0 in self.shape:
            return 0
        last = sum((size - 1) * step for size, step in zip(self.shape, self.stride, strict=True))
        return (last + 1) * self.dtype.itemsize

    def scaled(self, sizes: Mapping[int, int]) -> Described:
        """The same with other sizes, laid out alike. sizes: by the present one."""
        made_by = self.made_by and (self.made_by[0].scaled(sizes), self.made_by[1])
        return replace(self.shaped([sizes.get(size, size) for size in self.shape]), made_by=made_by)

    def resized(self, dim: int, size: int) -> Described:
        """The same with another size of one dimension, laid out alike."""
        return self.shaped([*self.shape[:dim], size, *self.shape[dim + 1 :]])

    def shaped(self, shape: Sequence[int]) -> Described:
        """The same with another shape, laid out alike."""
        stride, old, new = list(self.stride), 1, 1  # elements within each dimension
        for dim in sorted(range(len(shape)), key=lambda dim: (self.stride[dim], self.shape[dim])):
            if self.stride[dim]:
                stride[dim] = -(-new * self.stride[dim] // old)
                old, new = self.stride[dim] * self.shape[dim], stride[dim] * shape[dim]
        return replace(self, shape=tuple(shape), stride=tuple(stride), sharing=self._sharing_at(shape, stride))

    def _sharing_at(self, shape: Sequence[int], stride: Sequence[int]) -> Sharing | None:
        """Where it lies with another shape and other strides."""
        if self.sharing is None or not self.sharing.offset:
            return self.sharing
        old, new = zip(self.shape, self.stride, strict=True), zip(shape, stride, strict=True)
        offset = scaled_offset(self.sharing.offset // self.dtype.itemsize, list(old), list(new))
        return replace(self.sharing, offset=offset * self.dtype.itemsize)

    def tensor(self, blocks: Mapping[tuple[int, int], torch.Tensor] = MappingProxyType({})) -> torch.Tensor:
        """A new one. blocks: memory for those that share it, by number and part."""
        if self.made_by is not None:
            call, place = self.made_by
            results = call.run()
            found = results[place] if isinstance(results, tuple | list) else results
            assert isinstance(found, torch.Tensor), "a described value is a tensor"
            return found
        if self.sharing is not None:
            block = blocks[self.sharing.memory, self.sharing.part]
            return tensor_in(block, self.sharing, self.shape, self.stride, self.dtype)
        made = torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=self.device)
        return made.fill_(0.5 if _is_fractional(self.dtype) else 0)


class CallMaker:
    """Describes nodes as calls.

    known: a number for each size symbol. producers: of values. in_one: storages that lie in one block of memory.
    """

    def __init__(
        self,
        known: Mapping[str, Number],
        producers: Mapping[Value, Node],
        in_one: Collection[int] = frozenset(),
    ) -> None:
        self.known = known
        self.producers = producers
        self.in_one = in_one
        self._seen: dict[Hashable, Described] = {}
        self._settings = _settings()
        self._calls: dict[Hashable, OperatorCall | None] = {}

    def call_of(self, node: Node) -> OperatorCall | None:
        """What is to be run for a node; None for a view, which takes nothing, and where nothing can be run.

        The same for nodes that are alike: a program has many nodes, and few kinds of them.
        """
        kind = None if self.in_one or reads_of_partners(node) else kind_of(node)
        if kind is None:
            return self._new_call(node)
        if kind not in self._calls:
            self._calls[kind] = self._new_call(node)
        return self._calls[kind]

    def _new_call(self, node: Node) -> OperatorCall | None:
        return self._call(node) if _runs_apart(node) and not _is_view(node) else None

    def _call(self, node: Node) -> OperatorCall:
        shared = self._shared(node)
        args = [self._operand(operand, node, shared) for operand in node.args]
        kwargs = {name: self._operand(operand, node, shared) for name, operand in node.kwargs}
        old = {value.tensor.storage for value in node.operands() if value.is_tensor}
        made = tuple(
            None if v is None or not v.is_tensor or v.tensor.storage in old else self._described(v.tensor)
            for v in node.outputs
        )
        return OperatorCall(node, args, kwargs, made, self._is_safe(node), _key(node, args, kwargs, self._settings))

    def _is_safe(self, node: Node) -> bool:
        """Whether no kernel gets whole numbers that it may not expect: zeros are no positions where nothing is."""
        tensors = [self._tensor(value, node) for value in node.operands() if value.is_tensor]
        zeros = [x for x in tensors if not _is_fractional(x.dtype) and x.dtype is not torch.bool and not x.is_made]
        if not zeros:
            return True
        looked_at = [*tensors, *(self._described(value.tensor) for value in node.results() if value.is_tensor)]
        if needs_other_numbers(node):
            if self._shared(node) or not operand_names(node):
                return False
            looked_at = [x for x in looked_at if _is_fractional(x.dtype)]
        is_empty = any(0 in x.shape for x in looked_at)
        return takes_zeros(node) and not (is_empty and any(0 not in x.shape for x in zeros))

    def _shared(self, node: Node) -> dict[Value, Sharing]:
        """The operands that share memory."""
        tensors = [value for value in node.operands() if value.is_tensor]
        storages = {value.tensor.storage for value in tensors}
        if len(storages) == len(tensors) and len(storages & {*self.in_one}) < 2:
            return {}
        return shared_operands(node, {value: self._span(value.tensor) for value in tensors}, self.in_one)

    def _span(self, meta: TensorMeta) -> Span:
        start = int(evaluate(meta.offset, self.known)) * meta.dtype.itemsize
        return Span(meta.storage, start, start + self._described(meta).size_bytes)

    def _operand(self, operand: Operand, reader: Node, shared: Mapping[Value, Sharing]) -> Operand:
        """An operand with descriptions for tensors, and numbers for sizes."""

        def describe(value: Value) -> Operand:
            if not value.is_tensor:
                return evaluate(_expr(value), self.known)
            found = self._tensor(value, reader)
            return replace(found, sharing=shared[value]) if value in shared and not found.is_made else found

        return with_numbers(map_operands(operand, describe), self.known)

    def _tensor(self, value: Value, reader: Node) -> Described:
        """What stands for a value where a node reads it."""
        found, node = self._described(value.tensor), self.producers.get(value)
        if _is_fractional(found.dtype) or found.dtype is torch.bool:
            return found
        if node is None or not reads_of_partner(reader, node):
            return found
        call = self._call(node)
        return replace(found, is_made=True, made_by=(call, node.outputs.index(value))) if call.is_safe else found

    def _described(self, meta: TensorMeta) -> Described:
        key = meta.layout()
        found = self._seen.get(key)
        if found is None:
            shape, stride = _numbers(meta.shape, self.known), _numbers(meta.stride, self.known)
            found = Described(shape, stride, meta.dtype, meta.device)
            self._seen[key] = found
        return found


def _key(node: Node, args: Sequence[Operand], kwargs: Mapping[str, Operand], settings: Hashable) -> Hashable:
    unread = tuple(value is None for value in node.outputs)  # what nobody reads is gone when the call ends
    return (node.target, frozen(args), frozen(sorted(kwargs.items())), unread, settings)


def _settings() -> Hashable:
    """What of the process decides which kernels run."""
    return (
        torch.get_num_threads(),
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        matmul_precision(),
        bool(torch.backends.mkldnn.enabled),
        torch.backends.cudnn.enabled,
        torch.backends.cudnn.benchmark,
        torch.backends.cudnn.deterministic,
    )


def is_opaque(node: Node) -> bool:
    """Whether an operator cannot be run apart and may take memory: another library's, or on another device."""
    takes_nothing = isinstance(node.target, Prim) or node.target is WAIT or _runs_apart(node) or _is_view(node)
    return not takes_nothing and any(value.is_tensor for value in (*node.operands(), *node.results()))


def _is_view(node: Node) -> bool:
    operands = {value.tensor.storage for value in node.operands() if value.is_tensor}
    is_within = operands and all(v.is_tensor and v.tensor.storage in operands for v in node.results())
    return bool(is_within) and not _writes(node)


def _runs_apart(node: Node) -> bool:
    """Whether it is of torch, or calls what is, over tensors on one device, the CPU or a GPU of this machine."""
    metas = [value.tensor for value in (*node.operands(), *node.results()) if value.is_tensor]
    op = operator_of(node)
    is_torchs = op is not None and schema_of(op).namespace == "aten"
    is_known = is_torchs or (isinstance(node.target, Prim) and node.target.takes_memory)
    return is_known and len({meta.device for meta in metas}) == 1 and _is_here(metas[0].device)


def _is_here(device: torch.device) -> bool:
    return device.type == "cpu" or (device.type == "cuda" and (device.index or 0) < torch.cuda.device_count())


def _is_fractional(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


def _expr(value: Value) -> Scalar:
    assert isinstance(value.meta, ScalarMeta), "it is a number"
    return value.meta.expr


def _writes(node: Node) -> bool:
    return bool(facts_of(node.target).writes)


def _numbers(sizes: Collection[object], known: Mapping[str, Number]) -> tuple[int, ...]:
    return tuple(int(evaluate(size, known)) for size in sizes)  # type: ignore[arg-type]


def _with_tensors(operand: Operand, blocks: Mapping[tuple[int, int], torch.Tensor]) -> Operand:
    """An operand with a tensor for each description, and new generators. blocks: memory for those that share it."""
    if isinstance(operand, Described):
        return operand.tensor(blocks)
    if isinstance(operand, list | tuple):
        return [_with_tensors(item, blocks) for item in operand]
    return torch.Generator() if isinstance(operand, torch.Generator) else operand


def _described_in(operand: object) -> Iterator[Described]:
    if isinstance(operand, Described):
        yield operand
    elif isinstance(operand, list | tuple):
        for item in operand:
            yield from _described_in(item)


def _scaled(operand: Operand, sizes: Mapping[int, int]) -> Operand:
    if isinstance(operand, Described):
        return operand.scaled(sizes)
    if isinstance(operand, list | tuple):
        return [_scaled(item, sizes) for item in operand]
    return sizes.get(operand, operand) if type(operand) is int else operand


def _resized(operand: Operand, dim: int | None, size: int) -> Operand:
    if dim == NUMBER:
        return size
    return operand.resized(dim, size) if dim is not None and isinstance(operand, Described) else operand


def _numbers_in(operand: object) -> Iterator[int]:
    if type(operand) is int:
        yield operand
    elif isinstance(operand, list | tuple):
        for item in operand:
            yield from _numbers_in(item)
