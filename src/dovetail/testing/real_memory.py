"""Which bytes real tensors occupy, and which of them an operator changed: by counting them, one by one.

Nothing here asks `dovetail.analysis`, whose answers it is used to check. Cost: O(bytes) of what is looked at.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from dovetail.torch_compat.dispatch import storage_key, without_modes

Mask: TypeAlias = npt.NDArray[np.bool_]


def address_span(tensor: torch.Tensor) -> tuple[int, int]:
    """First and one past the last address of the elements; (0, 0) for an empty tensor."""
    if tensor.numel() == 0:
        return 0, 0
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()


def occupied(tensor: torch.Tensor, start: int, length: int) -> Mask:
    """For each of `length` addresses from `start` on, whether it belongs to an element of the tensor."""
    mask: Mask = np.zeros(length, dtype=np.bool_)
    if tensor.numel() == 0:
        return mask
    places = np.zeros(1, dtype=np.int64)
    for size, step in zip(tensor.shape, tensor.stride(), strict=True):
        along = np.arange(1 if step == 0 else size, dtype=np.int64) * step
        places = (places[:, None] + along).reshape(-1)
    unit = tensor.element_size()
    addresses = (places[:, None] * unit + np.arange(unit)).reshape(-1) + (tensor.data_ptr() - start)
    mask[addresses[(addresses >= 0) & (addresses < length)]] = True
    return mask


def share_a_byte(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether an element of one lies where an element of the other lies."""
    (first, end), (other_first, other_end) = address_span(a), address_span(b)
    start, stop = max(first, other_first), min(end, other_end)
    if start >= stop or a.device != b.device:
        return False
    return bool((occupied(a, start, stop - start) & occupied(b, start, stop - start)).any())


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The bytes of a storage as they were. start: its first address."""

    storage: torch.UntypedStorage
    start: int
    contents: npt.NDArray[np.uint8]

    def changed(self) -> Mask:
        """For each byte, whether it is another one now."""
        now = _contents(self.storage)
        if len(now) != len(self.contents):
            return np.ones(len(self.contents), dtype=np.bool_)
        differs: Mask = np.not_equal(now, self.contents)
        return differs


def snapshots(tensors: Iterable[torch.Tensor]) -> list[Snapshot]:
    """One for each storage that the tensors lie on."""
    storages = {storage_key(tensor): tensor.untyped_storage() for tensor in tensors}
    return [Snapshot(s, s.data_ptr(), _contents(s)) for s in storages.values() if s.nbytes()]


def _contents(storage: torch.UntypedStorage) -> npt.NDArray[np.uint8]:
    with without_modes(), torch.no_grad():
        flat = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
        copied: npt.NDArray[np.uint8] = flat.to("cpu", copy=True).numpy()
    return copied
