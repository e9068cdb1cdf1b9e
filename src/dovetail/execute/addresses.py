"""Where many tensors lie, asked at once: by machine code where a program runs as such, else one by one."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, TypeAlias

import torch

from dovetail.deferred import deferred
from dovetail.execute.protocol import Executor

if TYPE_CHECKING:
    from dovetail.execute.native import table_text
else:
    table_text = deferred("dovetail.execute.native.table_text")

AddressesOf: TypeAlias = Callable[[Sequence[torch.Tensor]], bytes]
"""Gives the addresses of tensors, in eight bytes each."""


def addresses_of(tensors: Sequence[torch.Tensor]) -> bytes:
    """See `AddressesOf`. Cost: 70 ns for each."""
    return array("Q", [tensor.data_ptr() for tensor in tensors]).tobytes()


def runs_as_machine_code(executors: Collection[str | Executor]) -> bool:
    """Whether machine code is among the executors of a program."""
    return any(each == "native" or getattr(each, "name", "") == "native" for each in executors)


def without_machine_code(executors: Collection[str | Executor]) -> tuple[str | Executor, ...]:
    """The others of a program's executors, which take less time to make ready."""
    return tuple(each for each in executors if not runs_as_machine_code([each])) or ("aten",)


def addresses_with(executors: Collection[str | Executor], count: int) -> AddressesOf:
    """The same for so many tensors, where machine code is among the executors of a program. Cost: 10 ns for each."""
    if not runs_as_machine_code(executors):
        return addresses_of
    fill, places = table_text.filler(), table_text.places_of([[(at, 0)] for at in range(count)], 0, [])
    room = bytes(8 * count)

    def asked(tensors: Sequence[torch.Tensor]) -> bytes:
        try:
            found: bytes = fill(room, places, tuple(tensors), b"")
        except TypeError:  # bytes of the other sign
            return addresses_of(tensors)
        return found

    return asked
