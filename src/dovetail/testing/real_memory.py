"""Which bytes real tensors occupy, and which of them an operator changed: by counting them, one by one.

Nothing here asks `dovetail.analysis`, whose answers it is used to check. Cost: O(bytes) of what is looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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


def places(tensor: torch.Tensor, start: int, length: int) -> npt.NDArray[np.int64]:
    """Which of `length` addresses from `start` on belong to elements of the tensor, counted from `start`."""
    if tensor.numel() == 0:
        return np.zeros(0, dtype=np.int64)
    found = np.zeros(1, dtype=np.int64)
    for size, step in zip(tensor.shape, tensor.stride(), strict=True):
        along = np.arange(1 if step == 0 else size, dtype=np.int64) * step
        found = (found[:, None] + along).reshape(-1)
    unit = tensor.element_size()
    found = (found[:, None] * unit + np.arange(unit)).reshape(-1) + (tensor.data_ptr() - start)
    inside: npt.NDArray[np.int64] = found[(found >= 0) & (found < length)]
    return inside


def occupied(tensor: torch.Tensor, start: int, length: int) -> Mask:
    """For each of `length` addresses from `start` on, whether it belongs to an element of the tensor."""
    mask: Mask = np.zeros(length, dtype=np.bool_)
    mask[places(tensor, start, length)] = True
    return mask


def share_a_byte(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether an element of one lies where an element of the other lies."""
    (first, end), (other_first, other_end) = address_span(a), address_span(b)
    start, stop = max(first, other_first), min(end, other_end)
    if start >= stop or a.device != b.device:
        return False
    return bool((occupied(a, start, stop - start) & occupied(b, start, stop - start)).any())


@dataclass(frozen=True, slots=True)
class Tenant:
    """A tensor, and whose it is: tensors of one party may share memory."""

    tensor: torch.Tensor
    party: int


def intruder(written: Sequence[Tenant], others: Iterable[Tenant]) -> tuple[Tenant, Tenant] | None:
    """A written tensor and one of another party, written or not, that share a byte; None when there are none."""
    everyone = [*((tenant, True) for tenant in written), *((tenant, False) for tenant in others)]
    for cluster in _meeting(everyone):
        spans = [address_span(tenant.tensor) for tenant, _ in cluster]
        start = min(first for first, _ in spans)
        length = max(end for _, end in spans) - start
        owners = np.full(length, -1, dtype=np.int64)
        chosen = sorted(cluster, key=lambda entry: not entry[1])
        for number, (tenant, is_written) in enumerate(chosen):
            mine = places(tenant.tensor, start, length)
            for owner in np.unique(owners[mine]):
                if owner >= 0 and chosen[owner][0].party != tenant.party:
                    return chosen[owner][0], tenant
            if is_written:
                owners[mine] = number
    return None


def _meeting(tenants: Iterable[tuple[Tenant, bool]]) -> list[list[tuple[Tenant, bool]]]:
    """Those whose address ranges meet that of another, in runs, where a written one is among them."""
    entries = [entry for entry in tenants if entry[0].tensor.numel()]
    runs: list[list[tuple[Tenant, bool]]] = []
    for device in {entry[0].tensor.device for entry in entries}:
        here = [entry for entry in entries if entry[0].tensor.device == device]
        here.sort(key=lambda entry: address_span(entry[0].tensor))
        end = 0
        for entry in here:
            first, stop = address_span(entry[0].tensor)
            if first >= end:
                runs.append([])
            runs[-1].append(entry)
            end = max(end, stop)
    return [run for run in runs if len(run) > 1 and any(is_written for _, is_written in run)]


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
