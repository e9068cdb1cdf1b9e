"""Tensors that a recorded step makes on the memory of arrays which are made, or read, before each run."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
import torch

from dovetail.capture.drawn_arrays import DrawnArray
from dovetail.frontends.step.drawn_values import kind_of_result
from dovetail.frontends.step.held_arrays import HeldArrays


class TensorsOnArrays:
    """Each tensor by the address of its array and what it is like, with its place among what is made before a run."""

    def __init__(self, held: HeldArrays) -> None:
        """held: arrays that are read."""
        self._made: dict[tuple[int, Hashable], int] = {}
        self._arrays: dict[int, Any] = {}
        self._held = held
        self._written: list[Any] = []

    def __bool__(self) -> bool:
        return bool(self._made)

    def add(self, which: int, array: Any, tensor: torch.Tensor) -> None:
        """Note one. which: its place."""
        self._made[(array.__array_interface__["data"][0], kind_of_result(tensor))] = which
        self._arrays[which] = array

    def among(self, constants: Sequence[torch.Tensor]) -> dict[int, int]:
        """Those of some tensors that are made before each run: by their number, their places."""
        keys = [(x.data_ptr(), kind_of_result(x)) for x in constants]
        return {slot: self._made[key] for slot, key in enumerate(keys) if key in self._made}

    def may_write(self, tensor: torch.Tensor) -> bool:
        """Whether the step may write a tensor: its array is made for the run, and no other tensor is on its memory."""
        which = self._made.get((tensor.data_ptr(), kind_of_result(tensor)))
        if which is None or self._held.lend(self._arrays[which]):
            return False
        array = self._arrays[which]
        if any(np.may_share_memory(array, other) for x, other in self._arrays.items() if x != which):
            return False
        self._written.append(array)
        return True

    def are_written_on(self, array: Any) -> bool:
        """Whether the step has written a tensor on memory of an array."""
        return any(np.may_share_memory(array, written) for written in self._written)


def from_numpy_or_drawn(function: Callable[..., Any]) -> Callable[..., Any]:
    """`torch.from_numpy` that takes stand-ins as well."""

    def from_numpy(array: Any) -> Any:
        return array.tensor() if type(array) is DrawnArray else function(array)

    return from_numpy
