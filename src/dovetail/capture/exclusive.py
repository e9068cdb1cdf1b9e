"""One recording at a time in a process.

While a program is recorded, its modules hold fake tensors, for every thread. So whoever records, or reads what a
recording may hold in its hands, holds this lock; compiled programs run without it.

A step that is watched in eager mode may wait for other threads. So whoever would watch, or record, while another thread
does (`REPLACING`), runs the code as it is, and does it in a later call.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

RECORDING = threading.RLock()
REPLACING = threading.RLock()  # held while functions of Python's and torch's report; never waited for


class _Thread(threading.local):
    is_recording = False
    is_watched = False


_HERE = _Thread()


@contextmanager
def recording_is_active() -> Iterator[None]:
    """While active, this thread's operators are recorded."""
    before = is_recording()
    _HERE.is_recording = True
    try:
        yield
    finally:
        _HERE.is_recording = before


@contextmanager
def step_is_watched() -> Iterator[None]:
    """While active, a step runs in eager mode in this thread, and what it reads is noted."""
    before = _HERE.is_watched
    _HERE.is_watched = True
    try:
        yield
    finally:
        _HERE.is_watched = before


def is_part_of_a_step() -> bool:
    """Whether code of this thread runs for an outer step or function, which is watched or recorded."""
    return is_recording() or _HERE.is_watched


@contextmanager
def replacing() -> Iterator[bool]:
    """Hold `REPLACING`, if no other thread does: gives whether it is held."""
    is_held = REPLACING.acquire(blocking=False)
    try:
        yield is_held
    finally:
        if is_held:
            REPLACING.release()


def is_recording() -> bool:
    """Whether operators of this thread are recorded."""
    return _HERE.is_recording
