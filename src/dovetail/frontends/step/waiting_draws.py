"""Draws of other threads from the generators that a process shares, while a step is recorded.

The recording looks at what the step has drawn, and then puts those generators back. A thread that prepares the next
batch meanwhile would seem to be the step, and would draw the same numbers again. So its draws wait, for a while: the
step may be waiting for it.
"""

from __future__ import annotations

import threading

from dovetail.errors import StateChangedOtherwise
from dovetail.frontends.step.reachable_state import ReachableState

_LONGEST = 5.0  # seconds


class WaitingDraws:
    """Those of one call that this thread records, perhaps several times."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._were_there = False
        self._ended = threading.Event()

    def __enter__(self) -> WaitingDraws:
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()

    def have_waited(self) -> bool:
        """Whether it is another thread that draws now; if so, it has waited for the end."""
        if threading.get_ident() == self._thread:
            return False
        self._were_there = True
        self._ended.wait(_LONGEST)
        return True

    def may_have_caused(self, error: Exception, reachable: ReachableState) -> bool:
        """Whether a recording may have taken draws of another thread for the step's; if so, the state that the step
        reaches is looked at again. That is said once: the thread waits by now.
        """
        were_there, self._were_there = self._were_there, False
        if not (were_there and isinstance(error, StateChangedOtherwise)):
            return False
        reachable.refresh()
        return True
