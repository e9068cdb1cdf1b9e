"""Checks of `torch_compat.spectral`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from dovetail.torch_compat import spectral
from dovetail.torch_compat.checks.difference import first_difference


class _Watching(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, ...]] = []

    def __torch_function__(
        self, func: Any, types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if {spectral.STFT: True}.get(func):
            self.calls.append(tuple(args[1:4]))
        return func(*args, **(kwargs or {}))


def check_stft() -> str | None:
    """A function mode meets it by this name, in a mapping as well."""
    with _Watching() as watching:
        spectral.STFT(torch.ones(2, 16), 8, 2, 8, torch.ones(8), False, True, True, None)
    return first_difference(("the numbers of calls", watching.calls, [(8, 2, 8)]))


CHECKS = (check_stft,)
