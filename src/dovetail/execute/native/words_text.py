"""LLVM's text of what compares words of memory with what is expected there: see `dovetail.reach.memory_words`.

Cost: 0.1 us, and 1 ns for each word.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from dovetail.execute.native.llvm_function import Function
from dovetail.execute.native.machine import function_of
from dovetail.execute.native.python_functions import maker_of, python_functions

_PYTHON = ("PyLong_AsLongLong", "PyLong_FromLongLong")
_DECLARED = """declare i64 @PyLong_AsLongLong(ptr)
declare ptr @PyLong_FromLongLong(i64)
"""


@cache
def changed_word() -> Callable[[int, int, int], int]:
    """The number of the first pair, from one number to before another one, at whose address is another word; -1 where
    there is none. Given the address of pairs. The GIL is held: nothing dies meanwhile.
    """
    text = _DECLARED + _compared() + _called()
    found = function_of(text, "changed_word", (), python_functions(_PYTHON))
    assert found is not None, "it calls Python alone"
    return maker_of("changed_word", found)(None)


def _compared() -> str:
    out = Function("define internal i64 @compared(i64 %pairs, i64 %from, i64 %to)")
    pairs = out.set("inttoptr i64 %pairs to ptr")
    with out.loop("%from", "%to") as at:
        pair = out.element("[2 x i64]", pairs, at)
        word = out.load("i64", out.slot(pair, 0, "ptr"), 8)
        out.leave(out.set(f"icmp ne i64 {word}, {out.slot(pair, 1)}"), f"i64 {at}")
    return out.finished("i64 -1")


def _called() -> str:
    out = Function("define ptr @changed_word(ptr %own, ptr %arguments, i64 %count)")
    places = [out.load("ptr", out.element("ptr", "%arguments", str(at)), 8) for at in range(3)]
    numbers = [out.set(f"call i64 @PyLong_AsLongLong(ptr {place})") for place in places]
    found = out.set(f"call i64 @compared({', '.join(f'i64 {number}' for number in numbers)})")
    return out.finished(f"ptr {out.set(f'call ptr @PyLong_FromLongLong(i64 {found})')}")
