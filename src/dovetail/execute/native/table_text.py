"""LLVM's text of what stands between Python's tensors and a table of the driver: what puts addresses and numbers into
a copy of it, and what moves version counters when its rows have run.

Both take a tuple of tensors. For a plain tensor or parameter torch's functions are called on the handle that lies in
Python's object. For an object of another class, and wherever an answer is not the usual one, a function of Python's is.

Source: Python's C interface; torch's `aoti_torch/c/shim.h`.
Cost:   10 ns for each tensor, where Python's own methods take 50 to 200.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import MappingProxyType

import torch

from dovetail.execute.native.llvm_function import Function
from dovetail.execute.native.machine import function_of
from dovetail.execute.native.python_functions import maker_of, python_functions
from dovetail.torch_compat.native_tensors import DATA, IS_INFERENCE, IS_NEGATIVE, counting_function, handle_offset

_PYTHON = (
    *("PyBytes_FromStringAndSize", "PyBytes_AsString", "PyBytes_Size", "PyTuple_GetItem", "PyTuple_Size"),
    *("PyObject_CallFunctionObjArgs", "PyLong_AsVoidPtr", "Py_BuildValue", "Py_DecRef"),
)
ASKED = (DATA, IS_NEGATIVE, IS_INFERENCE)
"""The functions of torch that `fill` calls."""

_TYPE = 8  # where the class of an object is: see `handle_offset`


def address(tensor: torch.Tensor) -> int:
    """Where a tensor's elements begin. Raises: TypeError where these bytes are numbers of the other sign."""
    if tensor.is_neg():
        raise TypeError
    return tensor.data_ptr()


def writable_address(tensor: torch.Tensor) -> int:
    """See `address`. Raises: TypeError for a tensor of inference mode as well, while that is off."""
    if tensor.is_inference() and not torch.is_inference_mode_enabled():
        raise TypeError
    return address(tensor)


def count_write(tensor: torch.Tensor) -> None:
    """Move the version counter of a tensor."""
    torch.autograd.graph.increment_version((tensor,))


def places_of(addresses: Sequence[Sequence[tuple[int, int]]], written: int, numbers: Sequence[int]) -> bytes:
    """What `filler` is told of places in a table.

    addresses: for each tensor, the slots that get its address, each with how many bytes are added. written: how many
    tensors, from the first on, are written. numbers: the slots of the numbers.
    """
    found = [*_head(), id(address), id(writable_address), written]
    for slots in addresses:
        found += [len(slots), *(number for pair in slots for number in pair)]
    found += [len(numbers), *numbers]
    return struct.pack(f"{len(found)}q", *found)


def _head() -> tuple[int, int]:
    """The classes of which handles are found in objects; none where they are not."""
    return (id(torch.Tensor), id(torch.nn.Parameter)) if handle_offset() is not None else (0, 0)


@cache
def filler() -> Callable[[bytes, bytes, tuple[torch.Tensor, ...], bytes], bytes]:
    """What makes a table: of one without addresses and numbers, `places_of` these, tensors, and numbers in eight bytes
    each. It raises what `address` and `writable_address` raise.
    """
    head = "define ptr @fill_table(ptr %given, ptr %places, ptr %tensors, ptr %numbers)"
    out = Function(head)
    size, bytes_ = (out.set(f"call {kind} @{name}(ptr %given)") for kind, name in _SIZE_AND_BYTES)
    made = out.set(f"call ptr @PyBytes_FromStringAndSize(ptr {bytes_}, i64 {size})")
    out.leave(out.set(f"icmp eq ptr {made}, null"), "ptr null")
    table = out.set(f"call ptr @PyBytes_AsString(ptr {made})")
    count = out.set("call i64 @PyTuple_Size(ptr %tensors)")
    failed = fill(
        *(out, table, "%places", out.element("i64", "%places", "5"), count),
        lambda at: out.set(f"call ptr @PyTuple_GetItem(ptr %tensors, i64 {at})"),
        "%numbers",
    )
    with out.when(failed):
        out.line(f"call void @Py_DecRef(ptr {made})")
    out.leave(failed, "ptr null")
    given = (ctypes.py_object, ctypes.c_char_p, ctypes.py_object, ctypes.c_char_p)
    found = function_over_tensors(out.finished(f"ptr {made}"), "fill_table", ASKED)
    return ctypes.PYFUNCTYPE(ctypes.py_object, *given)(found)


def fill(
    out: Function, table: str, told: str, places: str, count: str, item_of: Callable[[str], str], numbers: str
) -> str:
    """Lines that write addresses of tensors and numbers into a table; whether they have failed, with an error raised.

    told: five words that `places_of` begins with. places: what follows them. count: how many tensors. item_of: lines
    that find one by its number. numbers: in eight bytes each.
    """
    written = out.slot(told, 4)
    place, failed = out.variable("ptr", places), out.variable("i1", "false", 1)
    with out.loop("0", count) as at, out.when(_is_unset(out, failed)):
        start = _address(out, told, item_of(at), out.set(f"icmp slt i64 {at}, {written}"), failed)
        slots = out.load("ptr", place, 8)
        shares = out.slot(slots, 0)
        with out.loop("0", shares) as number:
            pair = out.element("[2 x i64]", out.element("i64", slots, "1"), number)
            there = out.set(f"add i64 {start}, {out.slot(pair, 1)}")
            is_there = out.set(f"icmp ne i64 {start}, 0")  # without memory it stays 0, which the driver refuses
            there = out.set(f"select i1 {is_there}, i64 {there}, i64 0")
            out.line(f"store i64 {there}, ptr {out.element('i64', table, out.slot(pair, 0))}, align 8")
        behind = out.set(f"add i64 {out.set(f'mul i64 {shares}, 2')}, 1")
        out.line(f"store ptr {out.element('i64', slots, behind)}, ptr {place}, align 8")
    slots = out.load("ptr", place, 8)
    with out.when(_is_unset(out, failed)), out.loop("0", out.slot(slots, 0)) as at:
        slot = out.load("i64", out.element("i64", out.element("i64", slots, "1"), at), 8)
        number = out.load("i64", out.element("i64", numbers, at), 1)
        out.line(f"store i64 {number}, ptr {out.element('i64', table, slot)}, align 8")
    return out.load("i1", failed, 1)


def _address(out: Function, told: str, item: str, is_written: str, failed: str) -> str:
    """Where the elements of a tensor of Python's begin. failed: a variable that is set where an error was raised."""
    start = out.variable("i64", "0")
    is_usual = out.variable("i1", "false", 1)
    with out.when(_is_known(out, item, told)):
        handle = out.element("i8", item, str(handle_offset() or 0))
        negative = out.set(f"call zeroext i1 @{IS_NEGATIVE}(ptr {handle})")
        inference = out.set(f"call zeroext i1 @{IS_INFERENCE}(ptr {handle})")
        unusual = out.set(f"or i1 {negative}, {out.set(f'and i1 {inference}, {is_written}')}")
        with out.when(out.set(f"xor i1 {unusual}, true")):
            answer = out.set(f"call i32 @{DATA}(ptr {handle}, ptr {start})")
            out.line(f"store i1 {out.set(f'icmp eq i32 {answer}, 0')}, ptr {is_usual}, align 1")
    with out.when(_is_unset(out, is_usual)):
        ask = out.set(f"select i1 {is_written}, i64 3, i64 2")
        function = out.load("ptr", out.element("i64", told, ask), 8)
        answer = out.set(f"call ptr (ptr, ...) @PyObject_CallFunctionObjArgs(ptr {function}, ptr {item}, ptr null)")
        has_raised = out.set(f"icmp eq ptr {answer}, null")
        out.line(f"store i1 {has_raised}, ptr {failed}, align 1")
        with out.when(out.set(f"xor i1 {has_raised}, true")):
            out.line(f"store ptr {out.set(f'call ptr @PyLong_AsVoidPtr(ptr {answer})')}, ptr {start}, align 8")
            out.line(f"call void @Py_DecRef(ptr {answer})")
    return out.load("i64", start, 8)


@cache
def counter() -> Callable[..., None]:
    """What moves the version counters of tensors, once for each time that one is given."""
    out = Function("define ptr @count_writes(ptr %own, ptr %arguments, i64 %count)")
    told = out.set("call ptr @PyBytes_AsString(ptr %own)")
    with out.loop("0", "%count") as at:
        item = out.load("ptr", out.element("ptr", "%arguments", at), 8)
        is_usual = out.variable("i1", "false", 1)
        with out.when(_is_known(out, item, told)):
            handle = out.element("i8", item, str(handle_offset() or 0))
            inference = out.set(f"call zeroext i1 @{IS_INFERENCE}(ptr {handle})")
            with out.when(out.set(f"xor i1 {inference}, true")):
                out.line(f"call void @count_write(ptr {handle})")
                out.line(f"store i1 true, ptr {is_usual}, align 1")
        with out.when(_is_unset(out, is_usual)):
            function = out.slot(told, 2, "ptr")
            answer = out.set(f"call ptr (ptr, ...) @PyObject_CallFunctionObjArgs(ptr {function}, ptr {item}, ptr null)")
            out.leave(out.set(f"icmp eq ptr {answer}, null"), "ptr null")
            out.line(f"call void @Py_DecRef(ptr {answer})")
    nothing = out.set("call ptr (ptr, ...) @Py_BuildValue(ptr @nothing)")
    counting = counting_function()
    assert counting is not None, "`machine.unavailable` has looked for it"
    text = f"declare void @count_write(ptr)\n{out.finished(f'ptr {nothing}')}"
    found = function_over_tensors(text, "count_writes", (IS_INFERENCE,), {"count_write": counting})
    made: Callable[..., None] = maker_of("count_writes", found)(struct.pack("3q", *_head(), id(count_write)))
    return made


def _is_known(out: Function, item: str, told: str) -> str:
    """Whether an object is of one of the first two classes of what a function is told."""
    kind = out.load("i64", out.element("i8", item, str(_TYPE)), 8)
    first, second = (out.set(f"icmp eq i64 {kind}, {out.slot(told, at)}") for at in (0, 1))
    return out.set(f"or i1 {first}, {second}")


def _is_unset(out: Function, variable: str) -> str:
    return out.set(f"xor i1 {out.load('i1', variable, 1)}, true")


def function_over_tensors(
    text: str, name: str, symbols: Sequence[str], others: Mapping[str, int] = MappingProxyType({})
) -> int:
    """The address of a function, which may call Python's and torch's that are declared here. symbols: of torch's.
    others: see `machine.function_of`.
    """
    found = function_of(_DECLARED + text, name, symbols, {**python_functions(_PYTHON), **others})
    assert found is not None, "`machine.unavailable` has looked for these symbols"
    return found


_SIZE_AND_BYTES = (("i64", "PyBytes_Size"), ("ptr", "PyBytes_AsString"))

_DECLARED = f"""declare i64 @PyBytes_Size(ptr)
declare ptr @PyBytes_AsString(ptr)
declare ptr @PyBytes_FromStringAndSize(ptr, i64)
declare i64 @PyTuple_Size(ptr)
declare ptr @PyTuple_GetItem(ptr, i64)
declare ptr @PyObject_CallFunctionObjArgs(ptr, ...)
declare ptr @PyLong_AsVoidPtr(ptr)
declare ptr @Py_BuildValue(ptr, ...)
declare void @Py_DecRef(ptr)
declare i32 @{DATA}(ptr, ptr)
declare zeroext i1 @{IS_NEGATIVE}(ptr)
declare zeroext i1 @{IS_INFERENCE}(ptr)
@nothing = private constant [1 x i8] zeroinitializer
"""
