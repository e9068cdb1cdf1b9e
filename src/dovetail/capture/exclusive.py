"""One recording at a time in a process.

While a program is recorded, its modules hold fake tensors, for every thread. So whoever records, or reads what a
recording may hold in its hands, holds this lock; compiled programs run without it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

RECORDING = threading.RLock()
_HERE = threading.local()


@contextmanager
def recording_is_active() -> Iterator[None]:
    """While active, this thread's operators are recorded."""
    before = is_recording()
    _HERE.is_recording = True
    try:
        yield
    finally:
        _HERE.is_recording = before


def is_recording() -> bool:
    """Whether operators of this thread are recorded."""
    return getattr(_HERE, "is_recording", False)
