"""Flattening nested containers, with the registrations torch knows (lists, dicts, dataclasses, ModelOutput, ...)."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.utils._pytree as torch_pytree

TreeSpec = torch_pytree.TreeSpec


def flatten(tree: object, is_whole: Callable[[Any], bool] | None = None) -> tuple[list[object], TreeSpec]:
    """The leaves of a nested container and the structure to rebuild it.

    A `torch.Size` of fixed numbers is a leaf, because torch would rebuild it as a tuple. is_whole: whether some other
    container is.
    """
    if is_whole is None:
        return torch_pytree.tree_flatten(tree, is_leaf=is_fixed_size)
    asked = [is_whole]
    try:
        return torch_pytree.tree_flatten(tree, is_leaf=lambda item: is_fixed_size(item) or asked[0](item))
    finally:
        asked.clear()  # torch's function is part of a cycle


def is_fixed_size(item: object) -> bool:
    """Whether this is a `torch.Size` of plain numbers, which is not taken apart."""
    return isinstance(item, torch.Size) and all(type(number) is int for number in item)


def is_node(kind: type) -> bool:
    """Whether torch takes objects of a class apart."""
    return kind in torch_pytree.SUPPORTED_NODES or torch_pytree.is_namedtuple_class(kind)


def unflatten(leaves: list[object], spec: TreeSpec) -> Any:
    """The container that `flatten` took apart, with other leaves."""
    if spec.is_leaf():  # torch's own way costs ten times as much
        (leaf,) = leaves
        return leaf
    kind = spec.type
    parts = leaves if spec.num_nodes == len(leaves) + 1 else list(_parts(leaves, spec))
    if kind in _SEQUENCES:
        return kind(parts)
    if kind is dict:
        return dict(zip(spec.context, parts, strict=True))
    return torch_pytree.SUPPORTED_NODES[kind].unflatten_fn(parts, spec.context)


_SEQUENCES = frozenset({tuple, list, torch.Size})  # of a size, torch makes a tuple


def _parts(leaves: list[object], spec: TreeSpec) -> Iterator[object]:
    end = 0
    for child in spec.children():
        start, end = end, end + child.num_leaves
        yield leaves[start] if child.is_leaf() else unflatten(leaves[start:end], child)


def with_keys(spec: TreeSpec, change: Callable[[Any], Any]) -> TreeSpec:
    """A structure like another one, with other keys of dictionaries. change: gives the new key for one."""
    if spec.is_leaf():
        return spec
    context: Any = spec.context
    if spec.type in (dict, OrderedDict):
        context = list(map(change, context))
    elif spec.type is defaultdict:
        context = [context[0], list(map(change, context[1]))]
    return TreeSpec(spec.type, context, [with_keys(child, change) for child in spec.children()])
