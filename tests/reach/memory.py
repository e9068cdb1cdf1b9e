"""Guards that ask machine code whether memory is as it was, in each call."""

from __future__ import annotations

from typing import Any

import pytest

from dovetail.execute.native.machine import unavailable
from dovetail.execute.native.words_text import changed_word
from dovetail.reach import guard
from dovetail.reach.guard import PythonGuard
from dovetail.reach.guarded import Guarded
from dovetail.reach.object_layout import object_layout


def skip_without_words() -> Any:
    """What compares words of memory."""
    if unavailable() or object_layout() is None:
        pytest.skip("no machine code, or no known layout of objects")
    return changed_word()


def ask_memory_always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every guard put its words together whenever it has none."""
    changed, original = skip_without_words(), PythonGuard.__init__

    def begin(self: PythonGuard, slots: Guarded) -> None:
        original(self, slots)
        self.ask_memory(changed)

    monkeypatch.setattr(PythonGuard, "__init__", begin)
    monkeypatch.setattr(guard, "_LONGEST_WAIT", 1)
