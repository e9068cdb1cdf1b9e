"""Donated tensors: which arguments of a call they are, and whether they can be donated.

The program may overwrite donated memory, so nothing else in the call may share it. That is checked before anything
runs. Afterwards the contents are lost, and the version counter has moved: autograd refuses to use the tensor if it had
saved it before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dovetail.errors import UnusableDonation
from dovetail.torch_compat.fakes import is_fake
from dovetail.torch_compat.subclasses import is_wrapper


@dataclass(frozen=True, slots=True)
class Donated:
    """Inputs of a graph that each call gives away.

    given: all of them. offered: those that the program may work in; the others it needs as they are.
    """

    given: tuple[int, ...] = ()
    offered: tuple[int, ...] = ()

    def count(self, inputs: Sequence[Any]) -> None:
        """Move the version counters of what is given away, whatever becomes of its contents."""
        for index in self.given:
            torch.autograd.graph.increment_version(inputs[index])

    def take(self, inputs: list[Any]) -> None:
        """Put tensors into the list that lie where those offered do, count with them, and are nobody's otherwise.

        A result may then be such a tensor, and is no input to autograd or to the caller.
        """
        for index in self.offered:
            inputs[index] = inputs[index].detach()


NOTHING_DONATED = Donated()


def refuse_sharing(donated: Mapping[int, str], tensors: Sequence[Any], names: Sequence[str]) -> None:
    """Raise UnusableDonation where a donated tensor cannot be written, or its storage is met elsewhere in the call.

    donated: what to call them, by their number among the tensors. tensors: all that the call may touch, by `names`.
    Storages are compared as wholes: parts of one that lie apart still count their writes together.
    Cost: about a microsecond for each tensor.
    """
    given: list[tuple[int, int, int, str]] = []
    for index, name in donated.items():
        tensor = tensors[index]
        if is_fake(tensor):  # nothing runs
            return
        if tensor.is_inference() and not torch.is_inference_mode_enabled():
            raise UnusableDonation(name=name, reason="it was created in inference mode, and can only be written there")
        given.append((index, *_range(tensor), name))
    for place, (tensor, other) in enumerate(zip(tensors, names, strict=True)):
        if not isinstance(tensor, torch.Tensor) or is_wrapper(tensor):
            continue
        start, end = _range(tensor)
        for index, first, last, name in given:
            if start < last and first < end and place != index:
                raise UnusableDonation(name=name, reason=f"{donated.get(place, other)} lies in the same storage")


def _range(tensor: torch.Tensor) -> tuple[int, int]:
    """The addresses of the storage of a tensor: half open."""
    storage = tensor.untyped_storage()
    start = storage.data_ptr()
    return start, start + storage.nbytes()
