"""LLVM's text of the call of a cluster: a function of Python's that fills a table with its arguments, runs it, and
gives the tensors that rows have taken.

    results = call(tensor, ..., numbers, threads)

Each cluster has one of its own, over bytes that say what it does (`_TOLD`). The GIL is released where there is much to
do. What is behind an answer of the driver's, if it was not that all rows have run, is an exception of Python's: see
`stop_at`.

Source: Python's C interface; torch's `aoti_torch/c/shim.h`.
Cost:   0.3 us, and 10 ns for each tensor, beside what rows do.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from dovetail.execute.native.llvm_function import Function
from dovetail.execute.native.python_functions import maker_of, python_functions
from dovetail.execute.native.table_text import ASKED, fill, function_over_tensors
from dovetail.execute.partly_run import PartlyRun
from dovetail.torch_compat.native_kernels import CATCHING
from dovetail.torch_compat.native_tensors import DELETE, wrapping_function

_HEAD = 5
"""Words that `table_text.places_of` begins with; the rest of it follows ours."""

_TOLD = ("stop", "drive", "rows", "early", "last", "results", "handles", "bytes", "places", "table", "tensors", "alone")
"""Words behind those: functions (Python's `stop_at`, and the driver), how many rows, how many of them are early, the
number of the last node, how many results and handles there are, how many bytes a table has, where places and the table
lie behind the beginning, how many tensors are given, and whether the GIL stays held. The slots of handles follow.
"""

_OWN = ("PyTuple_New", "PyTuple_SetItem", "PyLong_AsLongLong", "PyLong_FromLongLong", "PyErr_Clear")
_THREADS = ("PyEval_SaveThread", "PyEval_RestoreThread")


class NothingRan(Exception):
    """The nodes of a cluster have to run one by one."""


def stop_at(answer: int, last: int) -> None:
    """What the driver said, if it was not that all rows have run. last: the number of the last node.

    Raises: PartlyRun, NothingRan.
    """
    if answer == 1:
        raise NothingRan
    raise PartlyRun("an operator of torch failed within native code, for lack of memory most likely", last)


@dataclass(frozen=True, slots=True)
class Work:
    """Of a cluster. tensors: how many are given. rows, early: of the table. last: the number of the last node.
    results: how many tensors the call gives. is_short: the GIL stays held.
    """

    tensors: int
    rows: int
    early: int
    last: int
    results: int
    is_short: bool


def cluster_call(table: bytes, places: bytes, handles: Sequence[int], drive: int, work: Work) -> Callable[..., Any]:
    """The call of a cluster; see the module docstring.

    table: without what is filled in. places: see `table_text.places_of`. handles: their slots, those of results first.
    drive: the driver's address.
    """
    head = 8 * (_HEAD + len(_TOLD) + len(handles))
    behind = head + len(places) - 8 * _HEAD
    words = [id(stop_at), drive, work.rows, work.early, work.last, work.results, len(handles), len(table)]
    words += [head, behind, work.tensors, work.is_short, *handles]
    return _maker()(places[: 8 * _HEAD] + struct.pack(f"{len(words)}q", *words) + places[8 * _HEAD :] + table)


@cache
def _maker() -> Callable[[object], Callable[..., Any]]:
    wrapping = wrapping_function()
    assert wrapping is not None, "`machine.unavailable` has looked for it"
    others = {"wrap_tensor": wrapping, **python_functions((*_OWN, *_THREADS))}
    address = function_over_tensors(_DECLARED + _call_text(), "call_cluster", (*ASKED, DELETE, *CATCHING), others)
    return maker_of("call_cluster", address)


def _call_text() -> str:
    head = "define ptr @call_cluster(ptr %own, ptr %arguments, i64 %count) personality ptr @__gxx_personality_v0"
    out = Function(head)
    told = out.set("call ptr @PyBytes_AsString(ptr %own)")
    word = {name: out.slot(told, _HEAD + at) for at, name in enumerate(_TOLD)}

    def argument(at: str) -> str:
        return out.load("ptr", out.element("ptr", "%arguments", at), 8)

    start = out.element("i8", told, word["table"])
    made = out.set(f"call ptr @PyBytes_FromStringAndSize(ptr {start}, i64 {word['bytes']})")
    out.leave(out.set(f"icmp eq ptr {made}, null"), "ptr null")
    table = out.set(f"call ptr @PyBytes_AsString(ptr {made})")
    numbers = out.set(f"call ptr @PyBytes_AsString(ptr {argument(word['tensors'])})")
    places = out.element("i8", told, word["places"])
    failed = fill(out, table, told, places, word["tensors"], argument, numbers)
    with out.when(failed):
        out.line(f"call void @Py_DecRef(ptr {made})")
    out.leave(failed, "ptr null")
    given = argument(out.set(f"add i64 {word['tensors']}, 1"))
    threads = out.set(f"call i64 @PyLong_AsLongLong(ptr {given})")
    answer = _driven(out, word, table, threads)
    handles = out.element("i64", told, str(_HEAD + len(_TOLD)))
    found, is_whole = out.variable("ptr", "null"), out.set(f"icmp eq i32 {out.load('i32', answer)}, 0")
    with out.when(is_whole):
        _collect(out, word, table, handles, found, answer)
    with out.when(out.set(f"icmp ne i32 {out.load('i32', answer)}, 0")):
        _stop(out, word, table, handles, answer)
    out.line(f"call void @Py_DecRef(ptr {made})")
    return out.finished(f"ptr {out.load('ptr', found, 8)}")


def _driven(out: Function, word: dict[str, str], table: str, threads: str) -> str:
    """Run the table. Returns a variable with the driver's answer."""
    answer, state = out.variable("i32", "0", 4), out.variable("ptr", "null")
    releases = out.set(f"icmp eq i64 {word['alone']}, 0")
    with out.when(releases):
        out.line(f"store ptr {out.set('call ptr @PyEval_SaveThread()')}, ptr {state}, align 8")
    drive = out.set(f"inttoptr i64 {word['drive']} to ptr")
    arguments = f"ptr {table}, i64 {word['rows']}, i64 {threads}, i64 {word['early']}"
    out.line(f"store i32 {out.set(f'call i32 {drive}({arguments})')}, ptr {answer}, align 4")
    with out.when(releases):
        out.line(f"call void @PyEval_RestoreThread(ptr {out.load('ptr', state, 8)})")
    return answer


def _collect(out: Function, word: dict[str, str], table: str, handles: str, found: str, answer: str) -> None:
    """Put the tensors of results into a tuple, None for one that is not there. The answer is 2 where that fails."""
    made = out.set(f"call ptr @PyTuple_New(i64 {word['results']})")
    failed, has_room = out.variable("i1", "false", 1), out.set(f"icmp ne ptr {made}, null")
    with out.when(out.set(f"xor i1 {has_room}, true")):
        out.line(f"store i1 true, ptr {failed}, align 1")
    with out.when(has_room), out.loop("0", word["results"]) as at:
        place = out.element("i64", table, out.load("i64", out.element("i64", handles, at), 8))
        handle, item = out.load("ptr", place, 8), out.variable("ptr", "null")
        with out.when(out.set(f"icmp ne ptr {handle}, null")):
            threw = out.attempt(f"ptr @wrap_tensor(ptr {handle})", item)
            out.set(f"call i32 @{DELETE}(ptr {handle})")
            out.line(f"store i64 0, ptr {place}, align 8")
            nothing = out.set(f"icmp eq ptr {out.load('ptr', item, 8)}, null")
            with out.when(out.set(f"or i1 {threw}, {nothing}")):
                out.line(f"store i1 true, ptr {failed}, align 1")
        with out.when(out.set(f"icmp eq ptr {out.load('ptr', item, 8)}, null")):
            out.line(f"store ptr {out.set('call ptr (ptr, ...) @Py_BuildValue(ptr @nothing)')}, ptr {item}, align 8")
        out.set(f"call i32 @PyTuple_SetItem(ptr {made}, i64 {at}, ptr {out.load('ptr', item, 8)})")
    out.line(f"store ptr {made}, ptr {found}, align 8")
    with out.when(out.load("i1", failed, 1)):
        out.line("call void @PyErr_Clear()")
        with out.when(has_room):
            out.line(f"call void @Py_DecRef(ptr {made})")
        out.line(f"store ptr null, ptr {found}, align 8")
        out.line(f"store i32 2, ptr {answer}, align 4")


def _stop(out: Function, word: dict[str, str], table: str, handles: str, answer: str) -> None:
    """Let go of what rows have taken, and raise the exception behind an answer."""
    with out.loop("0", word["handles"]) as at:
        place = out.element("i64", table, out.load("i64", out.element("i64", handles, at), 8))
        handle = out.load("ptr", place, 8)
        with out.when(out.set(f"icmp ne ptr {handle}, null")):
            out.set(f"call i32 @{DELETE}(ptr {handle})")
    said = out.set(f"sext i32 {out.load('i32', answer)} to i64")
    first, second = (out.set(f"call ptr @PyLong_FromLongLong(i64 {number})") for number in (said, word["last"]))
    stop = out.set(f"inttoptr i64 {word['stop']} to ptr")
    arguments = f"ptr {stop}, ptr {first}, ptr {second}, ptr null"
    out.set(f"call ptr (ptr, ...) @PyObject_CallFunctionObjArgs({arguments})")
    for number in (first, second):
        out.line(f"call void @Py_DecRef(ptr {number})")


_DECLARED = f"""declare i32 @__gxx_personality_v0(...)
declare ptr @__cxa_begin_catch(ptr)
declare void @__cxa_end_catch()
declare i32 @{DELETE}(ptr)
declare ptr @wrap_tensor(ptr)
declare ptr @PyTuple_New(i64)
declare i32 @PyTuple_SetItem(ptr, i64, ptr)
declare i64 @PyLong_AsLongLong(ptr)
declare ptr @PyLong_FromLongLong(i64)
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare void @PyErr_Clear()
"""
