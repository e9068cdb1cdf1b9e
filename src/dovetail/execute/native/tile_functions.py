"""Functions on a tile of elements, each of which calls one function of a library: LLVM's text of them.

    define internal void @tile_NAME(i64 %count, i64 %rest, ptr %from, ptr %to)

count: elements of the tile. rest: the number of the first element that torch computes one by one. Both pieces of memory
are whole tiles, so that a vector may reach beyond the last element.

| name | what is called |
|---|---|
| `Exp` | MKL, on all elements, as torch calls it |
| `sleef exp` | Sleef, vector by vector, on all elements |
| `libm exp` | the library of C, on the rest |

    define internal void @repeated_HOW_KIND(ptr %from, i64 %first, i64 %count, i64 %inner, i64 %size, ptr %to)

The elements of a cell that is repeated, from element `first` of the loop on: see `execute.native.repeats`.

Source: MKL's vector mathematics, and its functions for threads; Sleef's names of functions; torch's `Vectorized`, by
processor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import torch

from dovetail.execute.native.llvm_function import Function
from dovetail.execute.native.loop import ROW
from dovetail.torch_compat.native_symbols import library_function

_ACCURATE = 0x2 | 0x140000 | 0x100  # VML_HA, VML_FTZDAZ_OFF, VML_ERRMODE_IGNORE: as ATen calls them
_VECTOR_BYTES = {"AVX512": 64, "AVX2": 32}
_NARROW = 32
_SIZE = {"float": 4, "double": 8}
_THREADS_OF_MKL = "MKL_Set_Num_Threads_Local"  # of this thread; it gives what it was


@dataclass(frozen=True, slots=True)
class TileFunction:
    """name: of the function on tiles. declared: what it calls, by symbol, "" for what is not there."""

    name: str
    declared: Mapping[str, str]
    text: str


@cache
def vector_bytes() -> int:
    """Bytes of the vectors that torch's kernels use on this processor."""
    return _VECTOR_BYTES.get(torch.backends.cpu.get_cpu_capability(), _NARROW)


def tile_function(name: str, element: str) -> TileFunction:
    """The function of a name, for elements that are float or double."""
    library, _, function = name.rpartition(" ")
    made = f"tile_{name.replace(' ', '_')}"
    out = Function(f"define internal void @{made}(i64 %count, i64 %rest, ptr %from, ptr %to) noinline")
    letter = "f" if element == "float" else ""
    if library == "sleef":
        lanes = vector_bytes() // _SIZE[element]
        is_there = torch.backends.cpu.get_cpu_capability() in _VECTOR_BYTES
        symbol = f"Sleef_{function}{letter or 'd'}{lanes}_u10" if is_there else ""
        return _called_for_each(made, out, symbol, (element, lanes), "0")
    if library == "libm":
        start = out.set("call i64 @llvm.smax.i64(i64 %rest, i64 0)")
        return _called_for_each(made, out, function + letter, (element, 1), start)
    symbol = f"vm{'s' if element == 'float' else 'd'}{function}"
    few, is_alone = out.set("trunc i64 %count to i32"), library_function(_THREADS_OF_MKL) is not None
    call = f"call void @{symbol}(i32 {few}, ptr %from, ptr %to, i64 {_ACCURATE})"
    declared = {symbol: f"declare void @{symbol}(i32, ptr, ptr, i64)"}
    if not is_alone:
        out.line(call)
        return TileFunction(made, declared, out.finished())
    former = out.set(f"call i32 @{_THREADS_OF_MKL}(i32 1)")  # else it makes a team of threads for each tile
    out.line(call)
    out.set(f"call i32 @{_THREADS_OF_MKL}(i32 {former})")
    declared[_THREADS_OF_MKL] = f"declare i32 @{_THREADS_OF_MKL}(i32)"
    return TileFunction(made, declared, out.finished())


def _called_for_each(made: str, out: Function, symbol: str, of: tuple[str, int], start: str) -> TileFunction:
    """A function that calls another one for some elements at once. of: their type, and how many."""
    element, lanes = of
    kind, size = element if lanes == 1 else f"<{lanes} x {element}>", _SIZE[element]
    with out.loop(start, "%count", str(lanes)) as at:
        value = out.load(kind, out.element(element, "%from", at), size)
        result = out.set(f"call {kind} @{symbol}({kind} {value})")
        out.line(f"store {kind} {result}, ptr {out.element(element, '%to', at)}, align {size}")
    return TileFunction(made, {symbol: f"declare {kind} @{symbol}({kind})"}, out.finished())


def repeat_name(how: str, kind: str) -> str:
    """The function that fills a tile. how: ROW or COLUMN. kind: of elements."""
    return f"repeated_{how}_{kind}"


def repeat_text(how: str, kind: str) -> str:
    """Its text: parts of a row one after the other, or each element of a column several times."""
    text = _ROW if how == ROW else _COLUMN
    return text.replace("$NAME", repeat_name(how, kind)).replace("$KIND", kind)


_ROW = """
define internal void @$NAME(ptr %from, i64 %first, i64 %count, i64 %inner, i64 %size, ptr noalias %to) noinline {
entry:
  %start = srem i64 %first, %size
  br label %part

part:
  %done = phi i64 [0, %entry], [%end, %copied]
  %place = phi i64 [%start, %entry], [0, %copied]
  %left = sub i64 %size, %place
  %more = add i64 %done, %left
  %end = call i64 @llvm.smin.i64(i64 %more, i64 %count)
  %behind = sub i64 %place, %done
  br label %copy

copy:
  %i = phi i64 [%done, %part], [%i1, %copy]
  %at = add i64 %i, %behind
  %p = getelementptr $KIND, ptr %from, i64 %at
  %x = load $KIND, ptr %p
  %q = getelementptr $KIND, ptr %to, i64 %i
  store $KIND %x, ptr %q
  %i1 = add i64 %i, 1
  %is_end = icmp sge i64 %i1, %end
  br i1 %is_end, label %copied, label %copy

copied:
  %is_all = icmp sge i64 %end, %count
  br i1 %is_all, label %return, label %part

return:
  ret void
}
"""

_COLUMN = """
define internal void @$NAME(ptr %from, i64 %first, i64 %count, i64 %inner, i64 %size, ptr noalias %to) noinline {
entry:
  %which = sdiv i64 %first, %inner
  %used = srem i64 %first, %inner
  %start = srem i64 %which, %size
  %unused = sub i64 %inner, %used
  br label %part

part:
  %done = phi i64 [0, %entry], [%end, %filled]
  %place = phi i64 [%start, %entry], [%following, %filled]
  %left = phi i64 [%unused, %entry], [%inner, %filled]
  %more = add i64 %done, %left
  %end = call i64 @llvm.smin.i64(i64 %more, i64 %count)
  %p = getelementptr $KIND, ptr %from, i64 %place
  %x = load $KIND, ptr %p
  br label %fill

fill:
  %i = phi i64 [%done, %part], [%i1, %fill]
  %q = getelementptr $KIND, ptr %to, i64 %i
  store $KIND %x, ptr %q
  %i1 = add i64 %i, 1
  %is_end = icmp sge i64 %i1, %end
  br i1 %is_end, label %filled, label %fill

filled:
  %next = add i64 %place, 1
  %is_around = icmp sge i64 %next, %size
  %following = select i1 %is_around, i64 0, i64 %next
  %is_all = icmp sge i64 %end, %count
  br i1 %is_all, label %return, label %part

return:
  ret void
}
"""
