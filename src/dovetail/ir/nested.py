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
