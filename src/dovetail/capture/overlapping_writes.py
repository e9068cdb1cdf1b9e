"""Writes whose result depends on the order in which elements are visited.

An operator that writes a tensor which overlaps itself, or another operand, reads some elements after it has written
them. Eager refuses many of these and computes something for the others; a functional program would compute what a
write after all reads gives. So: where eager refuses, the same error; where elements would be read again, a named one.
Eager is asked only where operands overlap, by running the operator on zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    suspects = [v for v in written if overlaps_itself(v.tensor).verdict is Verdict.OVERLAPPING]
    pairs = _meeting_pairs(written, read)
    if not (suspects or pairs):
        return
    facts = facts_of(target)
    if schema_of(target).namespace == "aten" and not facts.draws and not facts.effect:
        _run_in_eager(target, args, kwargs)
    if pairs:
        w, other = pairs[0]
        raise OrderDependentWrite(operator=str(target), origin=origins.here(), written=w.name, other=other.name)


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


def _meet(a: Value, b: Value) -> bool:
    return overlap(a.tensor, b.tensor).verdict is Verdict.OVERLAPPING


def _same_region(a: Value, b: Value) -> bool:
    one, other = a.tensor, b.tensor
    alike = one.shape == other.shape and one.stride == other.stride and one.dtype.itemsize == other.dtype.itemsize
    return alike and one.offset == other.offset


def _run_in_eager(target: Overload, args: Sequence[Operand], kwargs: Sequence[tuple[str, Operand]]) -> None:
    """Let eager say whether it takes these operands, on zeros that lie like them; no large or symbolic ones."""
    values = [v for v in (*values_in(list(args)), *values_in([a for _, a in kwargs])) if v.is_tensor]
    ends = [_end_bytes(v.tensor) for v in values]
    if any(end is None for end in ends) or sum(end or 0 for end in ends) > _MAX_BYTES:
        return
    sizes: dict[int, int] = {}
    for value, end in zip(values, ends, strict=True):
        sizes[value.tensor.storage] = max(sizes.get(value.tensor.storage, 0), end or 0)
    storages: dict[int, torch.UntypedStorage] = {}

    def stand_in(operand: Operand) -> Any:
        if isinstance(operand, Value) and operand.is_tensor:
            meta = operand.tensor
            if meta.storage not in storages:
                whole = torch.zeros(sizes[meta.storage], dtype=torch.uint8)
                storages[meta.storage] = whole.untyped_storage()
            empty = torch.empty(0, dtype=meta.dtype)
            return empty.set_(storages[meta.storage], meta.offset, meta.shape, meta.stride)  # type: ignore[arg-type]
        return type(operand)(map(stand_in, operand)) if isinstance(operand, tuple | list) else operand

    with without_modes(), torch.no_grad():
        target(*map(stand_in, args), **{name: stand_in(operand) for name, operand in kwargs})


def _end_bytes(meta: TensorMeta) -> int | None:
    extent = extent_bytes(meta)
    return None if extent is None or meta.device.type != "cpu" else extent[1]
