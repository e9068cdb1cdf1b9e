"""One thread at a time, for a program whose cache has the texts of one call."""

from __future__ import annotations

import threading

from dovetail.frontends.freezing.call_form import mismatch


class Turns:
    """Threads take turns. A thread that calls while it is its turn (a streamer does so) would wait for itself."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: int | None = None

    def is_mine(self) -> bool:
        """Whether it is this thread's turn."""
        return self._thread == threading.get_ident()

    def __enter__(self) -> None:
        if self.is_mine():
            hint = "call a copy: copy.deepcopy of a generator has a cache of its own over the same weights"
            reason = "this thread is in a call of it already, perhaps by a streamer"
            because = "its cache is state of the program, and has the texts of one call"
            raise mismatch("generate", reason, hint, because)
        self._lock.acquire()
        self._thread = threading.get_ident()

    def __exit__(self, *error: object) -> None:
        self._thread = None
        self._lock.release()
