"""Memory that is filled when it is allocated: what reads memory that nobody has written gives other numbers then."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator

HUGE = 0x80
"""Makes each `float` in fresh memory 3.4e38."""

_PERTURB, _MMAP_THRESHOLD = -6, -3  # from malloc.h
_MOST = 32 << 20  # what glibc takes: larger blocks are pages of the system, which are zeros
_USUAL = 128 << 10


@contextlib.contextmanager
def filled_with(byte: int) -> Iterator[None]:
    """While active, fresh memory holds the complement of a byte, and memory that is let go the byte.

    Where the C library, glibc, can do that.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", lambda *_: None)
    mallopt(_PERTURB, byte)
    mallopt(_MMAP_THRESHOLD, _MOST)
    try:
        yield
    finally:
        mallopt(_PERTURB, 0)
        mallopt(_MMAP_THRESHOLD, _USUAL)
