"""When nodes are alike: the same operator on operands that are described alike and share memory alike.

What holds for a call of one holds for the others. It is found without describing the call, which takes much longer.

Cost: O(operands), and that of hashing what is found.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

import torch

from dovetail.ir.program import Node, Operand, TensorMeta, Value


def kind_of(node: Node) -> Hashable:
    """What is equal for nodes that are alike. Operators count by identity, so it holds as long as its node is there."""
    storages: dict[int, int] = {}
    metas: list[TensorMeta] = []
    args = _parts(node.args, storages, metas)
    kwargs = tuple([(name, _part(operand, storages, metas)) for name, operand in node.kwargs])
    results = _parts(node.outputs, storages, metas)
    # Where operands lie matters only if some lie in one storage.
    offsets = None if len(storages) == len(metas) else tuple([meta.offset for meta in metas])
    return (id(node.target), args, kwargs, results, offsets)


def _parts(operands: Iterable[Operand], storages: dict[int, int], metas: list[TensorMeta]) -> Hashable:
    return tuple([_part(operand, storages, metas) for operand in operands])


def _part(operand: Operand, storages: dict[int, int], metas: list[TensorMeta]) -> Hashable:
    if isinstance(operand, Value):
        meta = operand.meta
        if not isinstance(meta, TensorMeta):
            return meta
        metas.append(meta)
        place = storages.setdefault(meta.storage, len(storages))
        return (meta.shape, meta.stride, meta.dtype, meta.device, place)
    if operand is None:
        return None
    if isinstance(operand, list | tuple):
        return (list, _parts(operand, storages, metas))
    return frozen(operand)


def frozen(operand: object) -> Hashable:
    """An operand as a key: equal for operands that are the same to an operator."""
    if isinstance(operand, list | tuple):
        return tuple(map(frozen, operand))
    if isinstance(operand, float):
        return ("float", repr(operand))
    if isinstance(operand, torch.Generator):
        return torch.Generator  # each run has its own
    return (type(operand), operand) if isinstance(operand, Hashable) else (type(operand), id(operand))
