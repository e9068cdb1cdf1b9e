"""What machine code over images with channels last shares: vectors of channels, of which the last may not be full, and
shares of the work.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from dovetail.execute.native.llvm_function import Function
from dovetail.execute.native.machine import function_of
from dovetail.execute.native.panels import usual_tile


class ChannelVectors:
    """Vectors of so many channels in a function. The module has `declared` of them."""

    def __init__(self, out: Function, lanes: int) -> None:
        self._out, self._lanes = out, lanes
        self.kind, self.mask_kind = f"<{lanes} x float>", f"<{lanes} x i1>"
        self._numbers = ", ".join(f"i64 {n}" for n in range(lanes))

    def mask(self, left: str) -> str:
        """Which channels of a vector there are, where so many are left from its beginning on."""
        few = self._out.spread("i64", left, self._lanes)
        return self._out.set(f"icmp slt <{self._lanes} x i64> <{self._numbers}>, {few}")

    def load(self, at: str, mask: str) -> str:
        """The channels at an address; 0 for those that are not there."""
        arguments = f"ptr {at}, i32 4, {self.mask_kind} {mask}, {self.kind} zeroinitializer"
        return self._out.set(f"call {self.kind} @llvm.masked.load.v{self._lanes}f32.p0({arguments})")

    def store(self, value: str, at: str, mask: str) -> None:
        """Write the channels that are there."""
        arguments = f"{self.kind} {value}, ptr {at}, i32 4, {self.mask_kind} {mask}"
        self._out.line(f"call void @llvm.masked.store.v{self._lanes}f32.p0({arguments})")

    @property
    def declared(self) -> str:
        """Declarations of what is called."""
        v, mask, name = self.kind, self.mask_kind, f"v{self._lanes}f32.p0"
        return (
            f"declare {v} @llvm.masked.load.{name}(ptr, i32, {mask}, {v})\n"
            f"declare void @llvm.masked.store.{name}({v}, ptr, i32, {mask})\n"
        )


def row_function(name: str, text: Callable[[int], str]) -> int:
    """The address of a row's function. text: of its module, which calls no others, for vectors of so many lanes."""
    return _row_function(name, text, usual_tile().lanes)


@cache
def _row_function(name: str, text: Callable[[int], str], lanes: int) -> int:
    found = function_of(text(lanes), name, ())
    assert found is not None, "it calls nothing"
    return found
