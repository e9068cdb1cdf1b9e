"""Memory that a program's own code lends to tensors: that of NumPy's arrays, as `torch.from_numpy` gives it.

    held = torch.from_numpy(table)      a constant of the program, on the memory of `table`
    held.mul_(2)                        eager mode changes `table`, which NumPy reads as well

Recording writes nothing, so that NumPy would go on reading what was there before; a program that wrote such memory
would do so where no guard looks. So it is refused, unless whoever makes the array anew for each run says otherwise.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Callable

import torch

from dovetail.capture.origins import OriginTracker
from dovetail.errors import WrittenArray


class LentMemory:
    """What one recording has met of such memory. may_write: told by who makes an array before each run."""

    def __init__(self, origins: OriginTracker) -> None:
        self.may_write: Callable[[torch.Tensor], bool] = lambda _: False
        self._origins = origins
        self._lent: dict[int, tuple[torch.Tensor, bytes]] = {}

    def note(self, real: torch.Tensor, storage: int) -> None:
        """A real tensor is met as it is made. storage: of what stands for it from now on."""
        if real.device.type == "cpu" and not real.untyped_storage().resizable():  # torch does not own it
            self._lent[storage] = real, _contents(real)

    def refuse_write(self, storage: int) -> None:
        """Raises: WrittenArray where an operator is to write such memory."""
        if storage in self._lent and not self.may_write(self._lent[storage][0]):
            raise WrittenArray(how="through a tensor on its memory", origin=self._origins.here())

    def check(self) -> None:
        """Raises: WrittenArray where the code has written such memory through its array."""
        if any(_contents(real) != before for real, before in self._lent.values()):
            raise WrittenArray(how="after it has made a tensor on its memory", origin=None)


def _contents(tensor: torch.Tensor) -> bytes:
    storage = tensor.untyped_storage()
    held = (ctypes.c_char * storage.nbytes()).from_address(storage.data_ptr()) if storage.nbytes() else b""
    return hashlib.blake2b(held).digest()
