"""What compares words of memory for guards: machine code, where a program runs as such."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from dovetail.deferred import deferred
from dovetail.execute.addresses import runs_as_machine_code
from dovetail.execute.protocol import Executor

if TYPE_CHECKING:
    from dovetail.execute.native import words_text
else:
    words_text = deferred("dovetail.execute.native.words_text")


def changed_word_with(executors: Collection[str | Executor]) -> Callable[[int, int, int], int] | None:
    """What compares them where machine code is among the executors of a program; None where it is not."""
    return words_text.changed_word() if runs_as_machine_code(executors) else None
