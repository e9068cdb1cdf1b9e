"""Tensors that get other memory, or another size, while a program is recorded: `out=`, `resize_`, `set_`.

    z = torch.empty(0); torch.add(x, 1, out=z)      ->    z = empty_strided([4], [1]); add(x, 1, out=z)
    y.resize_(2, 3)                                 ->    y = as_strided(y, [2, 3], [3, 1], 0)
    y.resize_(9, 3)                                 ->    z = empty_strided([9, 3], [3, 1]); copy_(part of z, y); y = z

From then on the tensor object stands for the new value. Others that lie on the memory from before keep to it: where
that has grown, eager moves their bytes along, and they are refused when they are used again. So are inputs, whose
memory is the caller's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, Protocol

import torch

from dovetail.ir.program import Operand, TensorMeta, Value
from dovetail.ops.facts import facts_of
from dovetail.ops.functional_variants import functional_variant
from dovetail.torch_compat.dispatch import Overload, schema_of, storage_key
from dovetail.torch_compat.fake_layouts import as_laid_out
from dovetail.torch_compat.nested import tensors_in

aten = torch.ops.aten


class Recording(Protocol):
    """A recorder, as this module sees it."""

    def value_of(self, tensor: torch.Tensor) -> Value:
        """See `Recorder`."""

    def value_on(self, storage: int) -> Value | None:
        """The first value on the storage of a tensor."""

    def is_given(self, value: Value) -> bool:
        """Whether its memory was there before."""

    def described(self, tensor: torch.Tensor, *, on_new_storage: bool) -> TensorMeta:
        """What a tensor is like now."""

    def rebind(self, tensor: torch.Tensor, name: str, meta: TensorMeta) -> Value:
        """A new value, for which a tensor stands from now on."""

    def made(self, name: str, meta: TensorMeta) -> Value:
        """A new value, for which no tensor stands."""

    def emit(self, target: Overload, args: tuple[Operand, ...], kwargs: Mapping[str, Operand], value: Value) -> None:
        """Append a node with one result, or with none if that is an operand."""

    def refuse_memory(self, what: str, value: Value) -> NoReturn:
        """Raise UnsupportedInputMutation."""


def note_outs(recorder: Recording, func: Overload, args: Sequence[Any], keywords: Mapping[str, Any]) -> bool:
    """Give each `out=` that has got another size the memory for it. Whether there is one."""
    names = [argument.name for argument in schema_of(func).arguments if argument.is_out]
    resized = [
        (place, item)
        for place, name in enumerate(names)
        if isinstance(item := keywords.get(name), torch.Tensor) and _differs(recorder.value_of(item).tensor, item)
    ]
    if not resized:
        return False
    others = {name: operand for name, operand in keywords.items() if name not in names}
    read = {id(x) for x in tensors_in((*args, *others.values()))}
    layouts = _layouts(func, args, others)
    for place, item in resized:
        old = recorder.value_of(item)
        if id(item) in read:
            recorder.refuse_memory("the size, and contents that are read,", old)
        if layouts is not None and layouts[place] != item.stride():
            if not facts_of(func).pointwise:
                recorder.refuse_memory("the size, and perhaps the strides,", old)
            aten.as_strided_.default(item, item.shape, layouts[place])  # as kernels do that go element by element
        _give_memory(recorder, item, old)
    return True


def _layouts(func: Overload, args: Sequence[Any], others: Mapping[str, Any]) -> list[tuple[int, ...]] | None:
    """The strides of what the operator gives without `out=`; None where all operands, and so those, are contiguous."""
    if all(tensor.is_contiguous() for tensor in tensors_in((*args, *others.values()))):
        return None
    writes = facts_of(func).writes
    variant = functional_variant(func, writes)
    if not (isinstance(variant.target, Overload) and variant.drops_out):
        return None
    given = as_laid_out(variant.target, args, variant.target(*args, **others), others)
    results = list(given) if isinstance(given, list | tuple) else [given]
    return [result.stride() for result in results]


def _differs(before: TensorMeta, tensor: torch.Tensor) -> bool:
    return len(before.shape) != tensor.dim() or any(
        str(a) != str(b) for a, b in zip(before.shape, tensor.shape, strict=True)
    )


def _give_memory(recorder: Recording, tensor: torch.Tensor, old: Value) -> Value:
    """Let a tensor stand for new memory in its present layout."""
    if recorder.is_given(old) or tensor.storage_offset() != 0:
        recorder.refuse_memory("the size", old)
    meta = recorder.described(tensor, on_new_storage=True)
    made = recorder.rebind(tensor, "empty_strided", meta)
    kinds = {"dtype": meta.dtype, "device": meta.device}
    recorder.emit(aten.empty_strided.default, (list(meta.shape), list(meta.stride)), kinds, made)
    return made


def change(recorder: Recording, func: Overload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Record an operator that gives its first operand another size or storage."""
    tensor = args[0]
    old = recorder.value_of(tensor)
    if recorder.is_given(old):
        recorder.refuse_memory("the size or storage", old)
    sources = [recorder.value_of(x) for x in args[1:] if isinstance(x, torch.Tensor)]
    before = tensor.untyped_storage().nbytes()
    result = func(*args, **kwargs)
    if schema_of(func).name == "set_":
        _let_lie(recorder, tensor, old, args[1:], sources)
        return result
    after = tensor.untyped_storage().nbytes()
    if before == after:
        _let_view(recorder, tensor, old)
        return result
    made = _give_memory(recorder, tensor, old)
    kept = min(before, after) // tensor.dtype.itemsize
    if kept:
        _copy_bytes(recorder, made, old, kept)
    return result


def _let_view(recorder: Recording, tensor: torch.Tensor, base: Value) -> None:
    meta = recorder.described(tensor, on_new_storage=False)
    if meta == base.tensor:
        return
    made = recorder.rebind(tensor, "as_strided", meta)
    recorder.emit(aten.as_strided.default, (base, list(meta.shape), list(meta.stride), meta.offset), {}, made)


def _copy_bytes(recorder: Recording, target: Value, source: Value, count: int) -> None:
    """Copy the first elements of one storage to another one."""
    flat = []
    for value in (target, source):
        meta = value.tensor
        line = TensorMeta((count,), (1,), 0, meta.dtype, meta.device, meta.storage)
        flat.append(recorder.made("as_strided", line))
        recorder.emit(aten.as_strided.default, (value, [count], [1], 0), {}, flat[-1])
    recorder.emit(aten.copy_.default, tuple(flat), {}, flat[0])


def _let_lie(
    recorder: Recording, tensor: torch.Tensor, old: Value, given: Sequence[Any], sources: Sequence[Value]
) -> None:
    """Let a tensor lie where another one does, or on memory of its own where nobody does."""
    if not given:
        _give_memory(recorder, tensor, old)
        return
    base = sources[0] if sources else recorder.value_on(storage_key(tensor))
    if base is None or base.tensor.dtype != tensor.dtype:
        recorder.refuse_memory("the storage (by `set_`)", old)
    meta = recorder.described(tensor, on_new_storage=False)
    made = recorder.rebind(tensor, "as_strided", meta)
    recorder.emit(aten.as_strided.default, (base, list(meta.shape), list(meta.stride), meta.offset), {}, made)


def lie_on(recorder: Recording, tensor: torch.Tensor, other: torch.Tensor) -> None:
    """`tensor.data = other`: let a tensor stand for another one's memory, in its layout."""
    base = recorder.value_of(other)
    tensor.data = other
    made = recorder.rebind(tensor, "data", recorder.described(tensor, on_new_storage=False))
    meta = made.tensor
    recorder.emit(aten.as_strided.default, (base, list(meta.shape), list(meta.stride), meta.offset), {}, made)
