"""Pages that calls use again: the C library's allocator gives memory back to the system that the next call asks for.

glibc gives back what lies free at the end of its heap where that is more than twice the largest block that it has
mapped and let go so far, up to 32 MiB. A call that takes more than that altogether, in smaller blocks, finds new pages
each time, and the system clears each of them: 1,000 pages take a millisecond. A block of that size which is mapped
once, and never touched, raises the limit.

Source: `mallopt(3)`, M_TRIM_THRESHOLD and M_MMAP_THRESHOLD, and what it says of their dynamic adjustment.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import Any

LEAST, MOST = 128 << 10, 32 << 20
"""Bytes: blocks that are smaller are not mapped by themselves, and the limit is not raised by larger ones."""


def keep_pages(size_bytes: int) -> None:
    """Let the allocator keep so many bytes that are free, where it is glibc's and they are fewer than `MOST`."""
    library = _library()
    if library is not None and LEAST <= size_bytes < MOST:
        library.free(library.malloc(size_bytes))  # free takes null, too


@cache
def _library() -> Any:
    if not sys.platform.startswith("linux"):
        return None
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return None
    library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
    library.free.restype, library.free.argtypes = None, (ctypes.c_void_p,)
    return library
