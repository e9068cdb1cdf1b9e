"""One recording at a time in a process.

While a program is recorded, its modules hold fake tensors, for every thread. So whoever records, or reads what a
recording may hold in its hands, holds this lock (`RECORDING`); compiled programs run without it.

While a step is recorded, its tensors themselves are fake, for every thread that holds them. So programs run beside each
other (`RUNNING`), but not beside that (`RUNNING.alone`).

A step that is watched in eager mode may wait for other threads. So whoever would watch, or record, while another thread
does (`REPLACING`), runs the code as it is, and does it in a later call.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident

from dovetail.errors import CaptureFailed

RECORDING = threading.RLock()
REPLACING = threading.RLock()  # held while functions of Python's and torch's report; never waited for


class _Thread(threading.local):
    is_recording = False
    is_watched = False


_HERE = _Thread()


class Running:
    """Threads that run programs, from the time that they look for one. Re-entrant."""

    def __init__(self) -> None:
        self._depths: dict[int, int] = {}
        self._alone = 0  # the thread that runs alone, or waits for that
        self._changed = threading.Condition()

    def __enter__(self) -> None:
        me, depths = get_ident(), self._depths
        depth = depths[me] = depths.get(me, 0) + 1
        if depth == 1 and self._alone:
            self._wait(me)

    def __exit__(self, *_: object) -> None:
        me, depths = get_ident(), self._depths
        depth = depths.pop(me, 1) - 1
        if depth:
            depths[me] = depth
        elif self._alone:
            with self._changed:
                self._changed.notify_all()

    def _wait(self, me: int) -> None:
        """Begin to run once nobody else runs alone. This thread has said that it does: no two can miss each other."""
        while self._alone not in (0, me):
            del self._depths[me]
            with self._changed:
                self._changed.notify_all()
                self._changed.wait_for(lambda: not self._alone)
            self._depths[me] = 1

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """While active, this thread does not count as one that runs a program: it may wait for another thread."""
        me = get_ident()
        depth = self._depths.pop(me)
        if self._alone:  # somebody may wait for this thread
            with self._changed:
                self._changed.notify_all()
        try:
            yield
        finally:
            self.__enter__()
            self._depths[me] = depth

    @contextmanager
    def alone(self) -> Iterator[bool]:
        """While active, no other thread runs a program. Gives False where waiting for that might never end.

        This thread may have begun to run; what it has found by then may not hold any more.
        """
        me = get_ident()
        depth, was_alone = self._depths.get(me, 0), self._alone == me
        if depth > 1 and not was_alone and (self._alone or len(self._depths) > 1):
            yield False  # others may wait for what the outer program does
            return
        try:
            with self._changed:
                self._depths.pop(me, None)
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._alone in (0, me))
                self._alone = me
                self._changed.wait_for(lambda: not self._depths.keys() - {me})
            yield True
        finally:
            with self._changed:
                if depth:
                    self._depths[me] = depth
                if self._alone == me and not was_alone:
                    self._alone = 0
                self._changed.notify_all()


RUNNING = Running()


@contextmanager
def recording_alone() -> Iterator[None]:
    """Hold `RECORDING` while no other thread runs a program. Raises: CaptureFailed where that might never be."""
    with RUNNING.alone() as is_alone, RECORDING:
        if not is_alone:
            raise CaptureFailed(error="another thread runs a program, and this one is part of a program")
        yield


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
    return _HERE.is_recording or _HERE.is_watched


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
