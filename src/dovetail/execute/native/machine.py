"""Machine code in this process: what llvmlite makes of LLVM's text. Kernels are kept, one for each loop.

Their object code is kept on disk as well, under LLVM's text. llvmlite is optional, and imported when the first kernel
is made. Without it, or on a processor for which nothing was tried, `unavailable` says why.

Source: llvmlite's documentation of its binding layer.
Cost:   10 to 40 ms for each kernel that was not made before; 0.2 ms where it is on disk.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

import torch

from dovetail.execute.native import cache as disk
from dovetail.execute.native.driver import POOL, driver_text
from dovetail.execute.native.llvm_text import kernel_text, symbols_of
from dovetail.execute.native.loop import Loop
from dovetail.execute.native.row_loop import RowLoop
from dovetail.execute.native.row_loop_text import row_loop_text
from dovetail.execute.native.team_text import SYSTEM
from dovetail.torch_compat.native_symbols import library_function
from dovetail.torch_compat.native_tensors import (
    DATA,
    DELETE,
    IS_INFERENCE,
    IS_NEGATIVE,
    MAKE,
    counting_function,
    wrapping_function,
)

_LOCK = threading.Lock()
_NAME, _ROW_NAME = "kernel", "row_kernel"
_LANES_OF_AVX2 = 8
AS_WRITTEN = "; as written\n"
"""Begins a module whose loops have their vectors, so that LLVM makes none and unrolls nothing: a third of the time."""
_OLDEST = (0, 45)  # of llvmlite: LLVM 20, which has pointers without types
_KERNELS: dict[Loop, int | None] = {}
_ADDRESSES: dict[str, int] = {}
_TEXTS: dict[int, str] = {}


@cache
def unavailable() -> str:
    """Why no machine code can be made here; "" where it can."""
    if importlib.util.find_spec("llvmlite") is None:
        return "llvmlite is not installed"
    if _version_of("llvmlite") < _OLDEST:
        return f"llvmlite is older than {'.'.join(map(str, _OLDEST))}"
    if platform.machine() not in ("x86_64", "AMD64"):
        return f"kernels are made for x86-64, and this is {platform.machine()}"
    missing = [name for name in (MAKE, DELETE, DATA, IS_NEGATIVE, IS_INFERENCE) if library_function(name) is None]
    others = {"THPVariable_Wrap": wrapping_function(), "bump_version": counting_function()}
    missing += [name for name, function in others.items() if function is None]
    if missing:
        return f"torch {torch.__version__} has no {missing[0]}, which native code calls for tensors"
    try:
        driver()
    except (RuntimeError, OSError, ImportError, AttributeError) as error:  # no memory may be executed here, say
        return f"LLVM failed: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return ""


def _version_of(package: str) -> tuple[int, ...]:
    """The first two numbers of a package's version; enough where it says none."""
    try:
        found = re.match(r"(\d+)\.(\d+)", importlib.metadata.version(package))
    except importlib.metadata.PackageNotFoundError:  # it was installed in another way
        found = None
    return _OLDEST if found is None else (int(found[1]), int(found[2]))


def kernel_of(loop: Loop) -> int | None:
    """The address of a loop's kernel; None where it calls a vector function that this torch does not have."""
    with _LOCK:
        if loop not in _KERNELS:
            _KERNELS[loop] = _compiled_loop(loop)
        return _KERNELS[loop]


@cache
def row_kernel_of(loop: RowLoop) -> int | None:
    """The address of the kernel of a loop over rows."""
    return function_of(row_loop_text(loop, _ROW_NAME), _ROW_NAME, ())


@cache
def driver() -> Callable[[bytes, int, int, int], int]:
    """Runs a table of kernels, given as bytes, a number of rows, a number of threads at most, and how many rows are
    early: see `execute.native.driver`. The GIL is released.
    """
    drive = made_driver(has_pool())
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=lambda: drive(b"", -1, 0, 0))
    return drive


def address_of_driver() -> int:
    """Where it is."""
    return ctypes.cast(driver(), ctypes.c_void_p).value or 0  # type: ignore[arg-type]


def made_driver(has_pool: bool) -> Callable[[bytes, int, int, int], int]:
    """A new driver. has_pool: whether it shares large rows among torch's threads, or its own."""
    has_own = has_pool and has_own_threads()
    with _LOCK:
        for symbol in (*(POOL if has_pool else ()), *(SYSTEM if has_own else ())):
            _binding().add_symbol(symbol, library_function(symbol))
        address = _address(driver_text(has_pool, has_own), "drive")
    return ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, *[ctypes.c_int64] * 3)(address)


@cache
def has_own_threads() -> bool:
    """Whether dovetail can have threads of its own."""
    return sys.platform == "linux" and all(library_function(symbol) is not None for symbol in SYSTEM)


@cache
def has_pool() -> bool:
    """Whether rows can be shared by torch's threads."""
    return all(library_function(symbol) is not None for symbol in POOL)


@cache
def processor() -> str:
    """LLVM's name of this processor."""
    return str(_binding().get_host_cpu_name())


@cache
def has_vectors(lanes: int) -> bool:
    """Whether this processor multiplies and adds vectors of 8 or 16 `float` in one instruction."""
    features = _binding().get_host_cpu_features()
    return bool(features.get("avx512f")) if lanes > _LANES_OF_AVX2 else all(map(features.get, ("avx2", "fma")))


def has_dot_products(lanes: int) -> bool:
    """Whether this processor sums products of 8-bit integers, in vectors of 8 or 16 sums, in one instruction."""
    features = _binding().get_host_cpu_features()
    if lanes > _LANES_OF_AVX2:
        return has_vectors(lanes) and bool(features.get("avx512vnni"))
    has_narrow = features.get("avxvnni") or (features.get("avx512vnni") and features.get("avx512vl"))
    return has_vectors(lanes) and bool(has_narrow)


def function_of(text: str, name: str, symbols: Iterable[str], others: Mapping[str, int] | None = None) -> int | None:
    """The address of a function of LLVM's text; None where it calls a symbol that torch's libraries do not have.
    others: addresses of functions that have other names in the text.
    """
    with _LOCK:
        for symbol, address in (others or {}).items():
            _binding().add_symbol(symbol, address)
        return _linked(text, name, symbols)


def _compiled_loop(loop: Loop) -> int | None:
    return _linked(kernel_text(loop, _NAME), _NAME, symbols_of(loop))


def _linked(text: str, name: str, symbols: Iterable[str]) -> int | None:
    for symbol in symbols:
        address = library_function(symbol) if symbol else None
        if address is None:
            return None
        _binding().add_symbol(symbol, address)
    return _address(text, name)


@cache
def _binding() -> Any:
    binding = importlib.import_module("llvmlite.binding")
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    return binding


def _new_machine() -> Any:
    """What emits code for this processor. An engine frees the one that it is given."""
    binding = _binding()
    target = binding.Target.from_default_triple()
    features = binding.get_host_cpu_features().flatten()
    return target.create_target_machine(cpu=processor(), features=features, opt=3, jit=True)


@cache
def _machine() -> Any:
    return _new_machine()


@cache
def _engine() -> Any:
    """What holds all machine code of the process, to its end: own threads may still run some when Python has ended."""
    engine = _binding().create_mcjit_compiler(_binding().parse_assembly(""), _new_machine())
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(engine))
    return engine


def _address(text: str, name: str) -> int:
    """The address of a function of a module, of which all names get an ending of their own."""
    own = f"{name}_{hashlib.sha256(text.encode()).hexdigest()[:32]}"
    if own in _ADDRESSES:
        return _ADDRESSES[own]
    text = text.replace(f"@{name}", f"@{own}")
    code = disk.recall("kernel", text)
    if code is None:
        code = _object_code(text)
        disk.remember("kernel", text, f"{name}, {len(text.splitlines())} lines of LLVM", code)
    engine = _engine()
    engine.add_object_file(_binding().ObjectFileRef.from_data(code))
    engine.finalize_object()
    _ADDRESSES[own] = engine.get_function_address(own)
    _TEXTS[_ADDRESSES[own]] = text
    return _ADDRESSES[own]


def listing_of(address: int) -> str:
    """The text of LLVM behind a function, and the assembly that it became."""
    with _LOCK:
        text = _TEXTS[address]
        assembly: str = _machine().emit_assembly(_optimized(text))
    return f"{text}\n{assembly}"


def _object_code(text: str) -> bytes:
    """What LLVM makes of a module."""
    code: bytes = _machine().emit_object(_optimized(text))
    return code


def _optimized(text: str) -> Any:
    is_as_written = text.startswith(AS_WRITTEN)
    binding, machine = _binding(), _machine()
    module = binding.parse_assembly(text)
    module.triple = machine.triple
    module.data_layout = str(machine.target_data)
    module.verify()
    tuning = binding.create_pipeline_tuning_options(speed_level=1 if is_as_written else 3)
    tuning.loop_vectorization = tuning.slp_vectorization = tuning.loop_unrolling = not is_as_written
    builder = binding.create_pass_builder(machine, tuning)
    builder.getModulePassManager().run(module, builder)
    return module
