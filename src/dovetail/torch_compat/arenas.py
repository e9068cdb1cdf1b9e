"""One storage with many tensors in it, whose memory comes and goes while the tensors stay.

`UntypedStorage.resize_` is public, the count of who holds a storage is not. Torch does not check that a tensor lies
within its storage's memory, so memory may be given back only while nobody else holds a tensor on it.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import TypeAlias

import torch

Layout: TypeAlias = "tuple[int, Sequence[int], Sequence[int], torch.dtype]"
"""Of a tensor: the offset in bytes, a multiple of its item's size, shape, stride and dtype."""

_NEW_PAGES = 32 << 20
"""From which size on the allocator of glibc takes new pages for each block, and gives them back with it."""
_ADVICE = getattr(mmap, "MADV_HUGEPAGE", None)  # Linux


class TensorArena:
    """A storage on the CPU, without memory at first, and the tensors in it."""

    def __init__(self, layouts: Sequence[Layout]) -> None:
        """layouts: of the tensors."""
        self._storage = torch.UntypedStorage(0)
        with torch.inference_mode(False), torch.no_grad():
            self.tensors = tuple(self._place(*layout) for layout in layouts)
        self._mine = self._held()

    def _place(self, offset: int, shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(0, dtype=dtype, device="cpu").set_(self._storage, offset // dtype.itemsize, shape, stride)

    def take(self, size_bytes: int) -> None:
        """Take memory: so many bytes, whose contents are open."""
        self._storage.resize_(size_bytes)
        if size_bytes >= _NEW_PAGES:
            _advise(self._storage.data_ptr(), size_bytes)

    def give_back(self) -> bool:
        """Give the memory back. False where somebody else holds a tensor in it, or the storage: it stays theirs."""
        if self._held() != self._mine:
            return False
        self._storage.resize_(0)
        return True

    def _held(self) -> tuple[int, int]:
        """How many hold the storage, and how many the Python objects."""
        objects = sum(map(sys.getrefcount, self.tensors)) + sys.getrefcount(self._storage)
        return torch._C._storage_Use_Count(self._storage._cdata), objects


def _advise(address: int, size_bytes: int) -> None:
    """Ask for large pages, where there are any: each new page is cleared when it is first touched, and a block of
    40 MiB has 10,000 small ones. Where nothing comes of it the pages are small.
    """
    if _ADVICE is None:
        return
    first = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
    last = (address + size_bytes) // mmap.PAGESIZE * mmap.PAGESIZE
    _madvise()(ctypes.c_void_p(first), ctypes.c_size_t(last - first), ctypes.c_int(_ADVICE))


@cache
def _madvise() -> Callable[..., object]:
    function: Callable[..., object] = ctypes.CDLL(None).madvise
    return function
