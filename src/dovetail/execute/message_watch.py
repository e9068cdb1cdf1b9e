"""Messages between two ranks that a program waits for: where the other rank has raised, the wait ends.

Work of gloo's that is a message cannot be asked whether it is done, and a wait that is too late ends the group's
connections. So the thread that runs the program waits as in eager mode, and another one looks at the notes of
`execute.failing_ranks`; once the group is given up, it ends the connections, and the wait fails.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from dovetail.execute.failing_ranks import LOOKS_EACH, GroupLog, log_of
from dovetail.torch_compat.collectives import end_messages, find_group


class _Awaited:
    """A message that is waited for, in which group, from or to which rank."""

    def __init__(self, group: Any, log: GroupLog, other: int, tag: int) -> None:
        self.group, self.log, self.other, self.tag = group, log, other, tag
        self.begin = time.monotonic()
        self.seen: dict[str, float] = {}


_AWAITED: set[_Awaited] = set()
_IS_AWAITED = threading.Event()
_THREADS: list[threading.Thread] = []
_START = threading.Lock()


def go_on_in(name: str) -> None:
    """This rank begins to send or to receive. Raises: RankFailed where its group was given up."""
    log_of(find_group(name)).go_on()


def wait_for_message(name: str, other: int, tag: int, work: Any) -> None:
    """Wait for a message of a group. Raises: RankFailed; RuntimeError."""
    group = find_group(name)
    log = log_of(group)
    if not log.is_watched:
        work.wait()
        return
    awaited = _Awaited(group, log, other, tag)
    _AWAITED.add(awaited)
    _start()
    try:
        work.wait()
    except RuntimeError:
        log.go_on()
        raise
    finally:
        _AWAITED.discard(awaited)


def _start() -> None:
    """See to it that the thread looks."""
    if not _IS_AWAITED.is_set():
        _IS_AWAITED.set()
    if not _THREADS or not _THREADS[0].is_alive():  # it is not there in a process that was forked
        with _START:
            if not _THREADS or not _THREADS[0].is_alive():
                _THREADS[:] = [threading.Thread(target=_look, name="dovetail messages", daemon=True)]
                _THREADS[0].start()


def _look() -> None:
    while True:
        _IS_AWAITED.wait()
        time.sleep(LOOKS_EACH)
        for awaited in tuple(_AWAITED):
            if time.monotonic() - awaited.begin >= LOOKS_EACH:
                _look_at(awaited)
        _IS_AWAITED.clear()
        if _AWAITED:
            _IS_AWAITED.set()


def _look_at(awaited: _Awaited) -> None:
    try:
        is_over = awaited.log.look(awaited.seen, other=awaited.other)
    except RuntimeError:  # the store is gone: the wait ends when the group's timeout has passed
        return
    if is_over and awaited in _AWAITED:
        end_messages(awaited.group, awaited.other, awaited.tag)
