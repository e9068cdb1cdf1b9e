"""What tells whether words of memory and tensors are as they were: machine code, where a program runs as such."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from dovetail.deferred import deferred
from dovetail.execute.addresses import runs_as_machine_code
from dovetail.execute.protocol import Executor

if TYPE_CHECKING:
    from dovetail.execute.native import watch_text
else:
    watch_text = deferred("dovetail.execute.native.watch_text")

Watch: TypeAlias = "Callable[[array[int], Sequence[torch.Tensor]], Callable[[int], Any] | None]"
"""See `execute.native.watch_text.watch`."""


def watch_with(executors: Collection[str | Executor]) -> Watch | None:
    """What watches where machine code is among the executors of a program, or may be; None where it is not."""
    return watch_text.watch if runs_as_machine_code(executors) or "auto" in map(_name_of, executors) else None


def _name_of(executor: str | Executor) -> str:
    return executor if isinstance(executor, str) else executor.name
