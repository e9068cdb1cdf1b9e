"""Ctrl-C while a step is captured: it is delayed until everything is restored.

In the middle it could leave a tensor replaced or a torch mode active, and some modes cannot handle that.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any


@contextlib.contextmanager
def interrupts_wait() -> Iterator[None]:
    """While active, an interrupt waits for the end; a third one does not.

    Other threads than the main one get none from Python, and a handler in C is left alone.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    handler: Any = before
    waiting: list[tuple[int, FrameType | None]] = []

    def note(number: int, frame: FrameType | None) -> None:
        waiting.append((number, frame))
        if len(waiting) > 2:
            handler(number, frame)

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
    if waiting:
        handler(*waiting[0])
