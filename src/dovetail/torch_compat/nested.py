"""What lies in nested sequences, as operators take and give them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch


def tensors_in(items: Iterable[object]) -> Iterator[torch.Tensor]:
    """The tensors among these, and in lists and tuples among them, in order."""
    for item in items:
        if isinstance(item, torch.Tensor):
            yield item
        elif isinstance(item, list | tuple):
            yield from tensors_in(item)


def has_symbolic_numbers(items: Iterable[object]) -> bool:
    """Whether one of these is a symbolic whole number, or a list or tuple that holds one."""
    return any(
        isinstance(item, torch.SymInt) or (isinstance(item, list | tuple) and has_symbolic_numbers(item))
        for item in items
    )
