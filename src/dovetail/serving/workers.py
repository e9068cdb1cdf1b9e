"""Threads that run calls, and a queue before them that does not grow without bounds."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor


class TooBusy(Exception):
    """There is no room in the queue."""


class Workers:
    """Runs calls, so many at a time; so many more wait. For one event loop."""

    def __init__(self, running: int, waiting: int) -> None:
        self._most = running + waiting
        self._threads = ThreadPoolExecutor(running, thread_name_prefix="dovetail-serve")
        self.pending = 0

    @property
    def is_full(self) -> bool:
        """Whether a call would be refused now."""
        return self.pending >= self._most

    async def run(self, call: Callable[[], bytes], timeout_s: float) -> bytes:
        """The result of a call. One that has begun ends, and keeps its place until then, also after a timeout.

        Raises: TooBusy at once; TimeoutError; what the call raises.
        """
        if self.is_full:
            raise TooBusy
        loop = asyncio.get_running_loop()
        self.pending += 1

        def ended(_: Future[bytes]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(self._left)

        future = self._threads.submit(call)
        future.add_done_callback(ended)
        return await asyncio.wait_for(asyncio.wrap_future(future), timeout_s)

    def close(self) -> None:
        """End once what runs has ended; what waits is dropped."""
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _left(self) -> None:
        self.pending -= 1
