"""The places of tensors in memory, so that copies of several can share memory in the same way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dovetail.torch_compat.dispatch import storage_key


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """Where a tensor lies, and what it is. storage: a number that no other storage of the run has."""

    storage: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    is_conjugate: bool
    is_negative: bool
    requires_grad: bool

    @staticmethod
    def of(tensor: torch.Tensor, storage: int) -> TensorPlace:
        """The place of a tensor whose storage has this number."""
        return TensorPlace(
            storage,
            tuple(tensor.shape),
            tuple(tensor.stride()),
            int(tensor.storage_offset()),
            tensor.dtype,
            tensor.is_conj(),
            tensor.is_neg(),
            tensor.requires_grad,
        )

    def on(self, storage: torch.UntypedStorage) -> torch.Tensor:
        """A tensor at this place of a storage."""
        made = torch.empty(0, dtype=self.dtype, device=storage.device)
        made.set_(storage, self.offset, self.shape, self.stride)
        if self.is_conjugate:
            made = torch.ops.aten._conj.default(made)
        if self.is_negative:
            made = torch.ops.aten._neg_view.default(made)
        return made.requires_grad_() if self.requires_grad else made


def clone_together(items: Sequence[Any]) -> list[Any]:
    """Copies of tensors, on memory of their own that they share as before; anything else is itself."""
    storages: dict[int, torch.UntypedStorage] = {}
    copies: list[Any] = []
    with torch.no_grad():
        for item in items:
            if not isinstance(item, torch.Tensor):
                copies.append(item)
                continue
            key = storage_key(item)
            if key not in storages:
                storages[key] = item.untyped_storage().clone()
            copies.append(TensorPlace.of(item, key).on(storages[key]))
    return copies
