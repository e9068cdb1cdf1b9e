"""Writes whose result depends on the order in which elements are visited.

An operator that writes a tensor which overlaps itself, or another operand, reads some elements after it has written
them. Eager refuses many of these and computes something for the others; a functional program would compute what a
write after all reads gives. So: where eager refuses, the same error; where elements would be read again, a named one.
So it is with an operand that is the written tensor itself, where an operator does not go element by element.
Eager is asked only where operands overlap, by running the operator on small numbers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dovetail.analysis.pairs import overlap, overlaps_itself
from dovetail.analysis.region import extent_bytes
from dovetail.analysis.verdict import Verdict
from dovetail.capture.origins import OriginTracker
from dovetail.errors import OrderDependentWrite
from dovetail.ir.program import Operand, TensorMeta, Value, values_in
from dovetail.ops.facts import facts_of
from dovetail.torch_compat.dispatch import Overload, schema_of, without_modes

_MAX_BYTES = 1 << 24


def refuse_order_dependent_write(
    target: Overload, args: Sequence[Operand], kwargs: Sequence[tuple[str, Operand]], origins: OriginTracker
) -> None:
    """Raise when eager refuses to carry out this write, or when its result depends on the order of elements.

    args, kwargs: operands, with values for tensors. Raises: RuntimeError, as eager; OrderDependentWrite.
    """
    writes = facts_of(target).writes
    if not writes:
        return
    names = [a.name for a in schema_of(target).arguments]
    keywords = dict(kwargs)
    held = {i: args[i] if i < len(args) else keywords.get(names[i]) for i in range(len(names))}
    written = [v for i in writes for v in values_in(held[i])]
    read = [v for i, operand in held.items() if i not in writes for v in values_in(operand) if v.is_tensor]
    facts = facts_of(target)
    suspects = {v: v for v in written if overlaps_itself(v.tensor).verdict is Verdict.OVERLAPPING}
    pairs = _meeting_pairs(written, read)
    if not facts.pointwise:
        suspects.update((w, other) for w in written for other in read if _is_same_memory(w, other))
    if not (suspects or pairs):
        return
    if schema_of(target).namespace == "aten" and not facts.draws and not facts.effect:
        eager = _Eager.of(target, args, kwargs)
        if eager is not None and not eager.agrees_with_copies(suspects):
            pairs += suspects.items()
    if pairs:
        w, other = pairs[0]
        is_itself = other is w and overlaps_itself(w.tensor).verdict is Verdict.OVERLAPPING
        overlapped = "itself" if is_itself else f"{other.name}, another of its operands"
        raise OrderDependentWrite(operator=str(target), origin=origins.here(), written=w.name, other=overlapped)


def _meeting_pairs(written: Sequence[Value], read: Sequence[Value]) -> list[tuple[Value, Value]]:
    """A written operand and another one: written, too, or read from bytes that are not exactly the written region."""
    on_storage: dict[int, list[Value]] = {}
    pairs: list[tuple[Value, Value]] = []
    for value in written:
        neighbours = on_storage.setdefault(value.tensor.storage, [])
        pairs += [(value, other) for other in neighbours if _meet(value, other)]
        neighbours.append(value)
    for other in read:
        for value in on_storage.get(other.tensor.storage, ()):
            if not _same_region(value, other) and _meet(value, other):
                pairs.append((value, other))
    return pairs


def _is_same_memory(a: Value, b: Value) -> bool:
    return a.is_tensor and a.tensor.storage == b.tensor.storage and _same_region(a, b)


def _meet(a: Value, b: Value) -> bool:
    return overlap(a.tensor, b.tensor).verdict is Verdict.OVERLAPPING


def _same_region(a: Value, b: Value) -> bool:
    one, other = a.tensor, b.tensor
    alike = one.shape == other.shape and one.stride == other.stride and one.dtype.itemsize == other.dtype.itemsize
    return alike and one.offset == other.offset


@dataclass(frozen=True)
class _Eager:
    """An operator on numbers that lie as its operands do. sizes: the bytes of each storage."""

    target: Overload
    args: Sequence[Operand]
    kwargs: Sequence[tuple[str, Operand]]
    sizes: Mapping[int, int]

    @classmethod
    def of(cls, target: Overload, args: Sequence[Operand], kwargs: Sequence[tuple[str, Operand]]) -> _Eager | None:
        """None for large and symbolic operands, and those that are not in the CPU's memory."""
        sizes: dict[int, int] = {}
        total = 0
        for value in (*values_in(list(args)), *values_in([a for _, a in kwargs])):
            if value.is_tensor:
                end = _end_bytes(value.tensor)
                if end is None or (total := total + end) > _MAX_BYTES:
                    return None
                sizes[value.tensor.storage] = max(sizes.get(value.tensor.storage, 0), end)
        return cls(target, args, kwargs, sizes)

    def agrees_with_copies(self, suspects: Collection[Value]) -> bool:
        """Whether eager leaves in the suspects what it leaves in copies that do not overlap; raises as eager does."""
        with without_modes(), torch.no_grad():
            try:
                return self._agrees(suspects, has_masks=True)
            except (RuntimeError, IndexError):  # another number of elements may be chosen than there are values for
                return self._agrees(suspects, has_masks=False)

    def _agrees(self, suspects: Collection[Value], has_masks: bool) -> bool:
        in_place = self._run(suspects, has_masks, copied=False)
        return not suspects or in_place == self._run(suspects, has_masks, copied=True)

    def _run(self, suspects: Collection[Value], has_masks: bool, *, copied: bool) -> list[list[int]]:
        """The bytes of each suspect afterwards, where it was written."""
        storages: dict[int, torch.UntypedStorage] = {}
        written: list[torch.Tensor] = []

        def stand_in(operand: Operand, is_written: bool) -> Any:
            if isinstance(operand, Value) and operand.is_tensor:
                meta = operand.tensor
                if meta.storage not in storages:
                    storages[meta.storage] = self._numbers(meta, self.sizes[meta.storage], has_masks)
                empty = torch.empty(0, dtype=meta.dtype)
                tensor = empty.set_(storages[meta.storage], meta.offset, meta.shape, meta.stride)  # type: ignore[arg-type]
                if is_written and operand in suspects:
                    written.append(_apart(tensor) if copied else tensor)
                    return written[-1]
                return tensor
            if isinstance(operand, tuple | list):
                return type(operand)(stand_in(item, is_written) for item in operand)
            return operand

        writes, names = facts_of(self.target).writes, [a.name for a in schema_of(self.target).arguments]
        args = [stand_in(operand, i in writes) for i, operand in enumerate(self.args)]
        self.target(*args, **{name: stand_in(operand, names.index(name) in writes) for name, operand in self.kwargs})
        return [_apart(tensor).untyped_storage().tolist() for tensor in written]

    def _numbers(self, meta: TensorMeta, size: int, has_masks: bool) -> torch.UntypedStorage:
        """1, 2 and 3 in turn; zeros for whole numbers that may be indices. has_masks: of truth values, two of three."""
        whole = torch.zeros(size, dtype=torch.uint8)
        if meta.dtype is torch.bool and has_masks:
            whole.copy_(torch.arange(size) % 3 > 0)
        if meta.dtype.is_floating_point or meta.dtype.is_complex or facts_of(self.target).pointwise:
            count = size // meta.dtype.itemsize
            whole[: count * meta.dtype.itemsize].view(meta.dtype).copy_(torch.arange(count) % 3 + 1)
        return whole.untyped_storage()


def _apart(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clone(memory_format=torch.contiguous_format)


def _end_bytes(meta: TensorMeta) -> int | None:
    extent = extent_bytes(meta)
    return None if extent is None or meta.device.type != "cpu" else extent[1]
