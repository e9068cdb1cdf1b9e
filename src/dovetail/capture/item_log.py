"""Numbers that a step read off tensors when it ran in eager mode, by the line that read them.

They are the best guess at how branches on data go when the step is recorded on fakes, which have no numbers. A guess
that turns out wrong costs one call in eager mode: every branch is asked again when the program runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from dovetail.capture.origins import OriginTracker
from dovetail.ir.program import Origin
from dovetail.torch_compat.dispatch import DispatchMode
from dovetail.torch_compat.traced_numbers import Plain

_ITEM = torch.ops.aten._local_scalar_dense.default


class ItemLog(DispatchMode):
    """A dispatch mode that changes nothing. numbers: what `.item()` gave, by line, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers: dict[tuple[str, int], list[Plain]] = {}
        self._origins = OriginTracker()

    def __torch_dispatch__(
        self, func: Any, types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is _ITEM and isinstance(result, bool | int | float):
            origin = self._origins.here()
            self.numbers.setdefault((origin.file, origin.line), []).append(result)
        return result


class ItemHints:
    """Hands out logged numbers, line by line, in order; the last one again when there are no more."""

    def __init__(self, numbers: Mapping[tuple[str, int], Sequence[Plain]] | None = None) -> None:
        self._numbers = numbers or {}
        self._next: dict[tuple[str, int], int] = {}

    def next_at(self, origin: Origin, dtype: torch.dtype) -> Plain:
        """The number for the next `.item()` of a line; 1 (or True) where nothing was logged."""
        key = (origin.file, origin.line)
        logged = self._numbers.get(key, ())
        place = self._next.get(key, 0)
        self._next[key] = place + 1
        kind = bool if dtype == torch.bool else float if dtype.is_floating_point else int
        fitting = [number for number in (logged[place:] or logged[-1:]) if type(number) is kind]
        return fitting[0] if fitting else kind(1)
