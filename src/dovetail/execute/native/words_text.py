"""LLVM's text of what compares words of memory with what is expected there: see `dovetail.reach.memory_words`."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache

from dovetail.execute.native.llvm_function import Function
from dovetail.execute.native.machine import function_of


@cache
def changed_word() -> Callable[[int, int, int], int]:
    """The number of the first pair, from one number to before another one, at whose address is another word; -1 where
    there is none. Given the address of pairs. The GIL is held: nothing dies meanwhile.
    """
    out = Function("define i64 @changed_word(i64 %pairs, i64 %from, i64 %to)")
    pairs = out.set("inttoptr i64 %pairs to ptr")
    with out.loop("%from", "%to") as at:
        pair = out.element("[2 x i64]", pairs, at)
        word = out.load("i64", out.slot(pair, 0, "ptr"), 8)
        out.leave(out.set(f"icmp ne i64 {word}, {out.slot(pair, 1)}"), f"i64 {at}")
    found = function_of(out.finished("i64 -1"), "changed_word", ())
    assert found is not None, "it calls nothing"
    return ctypes.PYFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(found)
