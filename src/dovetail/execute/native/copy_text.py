"""LLVM's text of the rows that copy: see `copies`.

slots: parts, pointers (the result, a source for each part), bytes that are zeroed first; for each part: rows, bytes
of a row, where the first one goes, how far the next one lies behind it, and the same in the source
"""

from __future__ import annotations

from functools import cache

from dovetail.execute.native.llvm_function import Function
from dovetail.execute.native.machine import function_of

_NAME = "copy_parts"
_SLOTS = 5  # of a part
_DECLARED = """declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
"""


@cache
def copy_function() -> int | None:
    """The address of the function of such rows."""
    return function_of(_text(), _NAME, ())


def _text() -> str:
    out = Function(f"define void @{_NAME}(ptr %row, i64 %from, i64 %to)")
    parts, result = out.slot("%row", 0), out.slot("%row", 1, "ptr")
    told = out.element("i64", "%row", out.set(f"add i64 {parts}, 2"))
    zeros = out.load("i64", told, 8)
    out.line(f"call void @llvm.memset.p0.i64(ptr {result}, i8 0, i64 {zeros}, i1 false)")
    with out.loop("%from", "%to") as part:
        source = out.load("ptr", out.element("i64", "%row", out.set(f"add i64 {part}, 2")), 8)
        first = out.element("i64", told, out.set(f"add i64 1, {out.set(f'mul i64 {part}, {_SLOTS}')}"))
        rows, width, place, pitch, source_pitch = (out.slot(first, at) for at in range(_SLOTS))
        start = out.element("i8", result, place)
        with out.loop("0", rows) as row:
            into = out.element("i8", start, out.set(f"mul i64 {row}, {pitch}"))
            read = out.element("i8", source, out.set(f"mul i64 {row}, {source_pitch}"))
            out.line(f"call void @llvm.memcpy.p0.p0.i64(ptr {into}, ptr {read}, i64 {width}, i1 false)")
    return _DECLARED + out.finished()
