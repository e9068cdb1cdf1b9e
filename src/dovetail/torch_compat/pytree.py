"""Flattening nested containers, with the registrations torch knows (lists, dicts, dataclasses, ModelOutput, ...)."""

from __future__ import annotations

from typing import Any

import torch.utils._pytree as torch_pytree

TreeSpec = torch_pytree.TreeSpec


def flatten(tree: object) -> tuple[list[object], TreeSpec]:
    """The leaves of a nested container and the structure to rebuild it."""
    return torch_pytree.tree_flatten(tree)


def unflatten(leaves: list[object], spec: TreeSpec) -> Any:
    """The container that `flatten` took apart, with other leaves."""
    return torch_pytree.tree_unflatten(leaves, spec)
