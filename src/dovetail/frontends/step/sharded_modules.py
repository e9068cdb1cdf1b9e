"""Modules of `fully_shard` between two calls of a step: programs begin with nothing gathered, evaluations leave that.

A forward without a backward leaves the weights of the outermost module gathered. Where a step trains, and so left
nothing gathered itself, what others have left is given up before the next call: on every rank, whether it runs a
program or eager mode, as all of them gather it again then. Weights that were written meanwhile are left alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from dovetail.torch_compat.fully_sharded import has_forward_before, reshard, states_of


class ShardedModules:
    """Those that a step reaches. A context, for its calls."""

    def __init__(self) -> None:
        """None is known yet."""
        self._states: list[Any] = []
        self._leaves_gathered = False

    def find(self, modules: Iterable[torch.nn.Module]) -> bool:
        """Note those among modules; whether one was gathered, and is not any more: a parameter of it is another."""
        self._states = states_of(inner for module in modules for inner in module.modules())
        return self._reshard()

    def __enter__(self) -> None:
        if self._states:
            self._reshard()

    def __exit__(self, *_: object) -> None:
        if self._states:
            self._leaves_gathered = has_forward_before(self._states)

    def _reshard(self) -> bool:
        return not self._leaves_gathered and reshard(self._states)
