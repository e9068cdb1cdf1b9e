"""LLVM's text of the rows that copy: see `copies`.

copy_parts    slots: parts, pointers (the result, a source for each part), bytes that are zeroed first; for each part:
              rows, bytes of a row, where the first one goes, how far the next one lies behind it, and the same in the
              source
copy_rows     slots: items, pointers (the result, a source), and the same of one part; items are shares of the work:
              rows are divided in proportion
"""

from __future__ import annotations

from functools import cache

from dovetail.execute.native.llvm_function import Function
from dovetail.execute.native.machine import function_of

_NAME, _SHARED_NAME = "copy_parts", "copy_rows"
_SLOTS = 5  # of a part
_DECLARED = """declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
"""


@cache
def copy_function() -> int | None:
    """The address of the function of such rows."""
    return function_of(_text(), _NAME, ())


@cache
def shared_copy_function() -> int | None:
    """The address of the function of rows that copy a part."""
    return function_of(_shared_text(), _SHARED_NAME, ())


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
        _copy(out, ("0", rows), (out.element("i8", result, place), pitch), (source, source_pitch), width)
    return _DECLARED + out.finished()


def _shared_text() -> str:
    out = Function(f"define void @{_SHARED_NAME}(ptr %row, i64 %from, i64 %to)")
    items, result, source = out.slot("%row", 0), out.slot("%row", 1, "ptr"), out.slot("%row", 2, "ptr")
    rows, width, place, pitch, source_pitch = (out.slot("%row", 3 + at) for at in range(_SLOTS))
    _copy(out, out.share(items, rows), (out.element("i8", result, place), pitch), (source, source_pitch), width)
    return _DECLARED + out.finished()


def _copy(out: Function, rows: tuple[str, str], into: tuple[str, str], source: tuple[str, str], width: str) -> None:
    """Copy rows, from one to before another one. into, source: where they begin, and how far the next one is."""
    with out.loop(*rows) as row:
        to, read = (out.element("i8", start, out.mul(row, pitch)) for start, pitch in (into, source))
        out.line(f"call void @llvm.memcpy.p0.p0.i64(ptr {to}, ptr {read}, i64 {width}, i1 false)")
