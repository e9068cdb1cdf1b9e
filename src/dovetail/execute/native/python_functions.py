"""Functions of machine code as functions of Python: those of its C interface, called without ctypes.

Source: Python's C interface, `PyCFunction_NewEx` and `METH_FASTCALL`, which are part of its stable ABI.
Cost:   40 ns for a call, where one of ctypes takes 250 to 500.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from typing import Any

_FAST_CALL = 0x80


class _Definition(ctypes.Structure):
    """What Python calls a `PyMethodDef`; it must outlive the functions that are made of it."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("documentation", ctypes.c_char_p),
    )


def python_functions(names: Iterable[str]) -> dict[str, int]:
    """The addresses of functions of Python's C interface, by name."""
    return {name: ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value or 0 for name in names}


def maker_of(name: str, address: int) -> Callable[[object], Callable[..., Any]]:
    """What makes functions of Python of a function of machine code, each of an object that is handed in first.

        ptr function(ptr %own, ptr %arguments, i64 %count)

    gets that object, the address of the arguments, and how many they are. The GIL is held. It returns an object, or
    null where an error was raised.
    """
    definition = _Definition(name.encode(), address, _FAST_CALL, None)
    given = (ctypes.POINTER(_Definition), ctypes.py_object, ctypes.py_object)
    new = ctypes.PYFUNCTYPE(ctypes.py_object, *given)(("PyCFunction_NewEx", ctypes.pythonapi))

    def made(own: object) -> Callable[..., Any]:
        function: Callable[..., Any] = new(ctypes.byref(definition), own, None)
        return function

    _KEPT.append(definition)
    return made


_KEPT: list[_Definition] = []  # functions may live as long as the process
