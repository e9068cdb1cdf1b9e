"""Functions of C that code calls: which of them depend on their arguments alone, and which read the outside.

Deny by default: a function is known to depend only on its arguments, or is asked again before each call, or it is
refused by its name. What a library of Python calls on its way is judged like a call by the user's own code.
"""

from __future__ import annotations

import _random
import gc
import sys
import threading
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch.utils.dlpack import to_dlpack

from dovetail.reach.contents import MISSING
from dovetail.reach.values import is_a, mro_of, own_of
from dovetail.torch_compat.settings import setting_functions, setting_of

_CLOCK = "reads the clock"
RANDOM = "draws random numbers outside torch"
_FILES = "asks the operating system"
_HIDDEN = "reads state that cannot be compared"

# Modules of C whose functions, and methods of whose classes, depend on their arguments alone.
_PURE_NAMES = """
_abc _ast _bisect _blake2 _bz2 _codecs _collections _contextvars _csv _datetime _decimal _elementtree
_functools _hashlib _heapq _imp _json _locale _lzma _md5 _opcode _operator _pickle _py_warnings _sha1 _sha2
_sha256 _sha512 _sre _stat _statistics _string _struct _suggestions _symtable _thread _tracemalloc _typing
_warnings _weakref array binascii builtins cmath collections datetime decimal fractions functools gc itertools
mappingproxy marshal math operator re types unicodedata weakref zlib
"""
_PURE = frozenset(_PURE_NAMES.split())
_PURE_PACKAGES = ("torch", "numpy", "scipy", "dovetail", "safetensors", "tokenizers", "regex", "_regex")
_OUTSIDE: dict[str, str] = {
    "time": _CLOCK,
    "posix": _FILES,
    "nt": _FILES,
    "_io": _FILES,
    "io": _FILES,
    "_random": RANDOM,
    "_socket": _FILES,
    "select": _FILES,
    "_ssl": _FILES,
    "fcntl": _FILES,
    "mmap": _FILES,
    "resource": _FILES,
    "_posixsubprocess": _FILES,
    "_uuid": RANDOM,
    "_queue": _HIDDEN,
    "_ctypes": _HIDDEN,
}
_DRAWING_PACKAGE = "numpy.random"
_OF_TEXT = frozenset(("StringIO", "BytesIO", "IncrementalNewlineDecoder"))
_ASKED_OF_LOCKS = ("locked", "_is_owned")
_OF_PYBIND = "pybind11_detail_function_record"  # what every function and method of pybind's is bound to
_DATES = frozenset(("now", "utcnow", "today"))
_HARMLESS = frozenset(
    (
        *("posix.fspath", "posix.getpid", "posix.cpu_count", "posix.register_at_fork", "posix._path_normpath"),
        *(
            "_signal.raise_signal",
            "time.sleep",
            "time.gmtime",
            "time.mktime",
            "time.strptime",
            "io.text_encoding",
            "_io.text_encoding",
        ),
    )
)
_HIDDEN_FUNCTIONS: tuple[Any, ...] = (
    to_dlpack,  # the memory of a tensor, past every operator
    *(sys.getrefcount, sys.getallocatedblocks),
    *(gc.get_count, gc.get_objects, gc.get_stats, gc.get_referrers, gc.get_freeze_count),
)
_ASKED: tuple[Callable[[], Any], ...] = (
    *(sys.getrecursionlimit, sys.getswitchinterval, torch.get_num_threads, torch.get_num_interop_threads),
    *(threading.get_ident, gc.isenabled),
    *(torch.is_autocast_cache_enabled, torch.is_deterministic_algorithms_warn_only_enabled),
)
_OF_AUTOCAST: Any = (torch.get_autocast_dtype, torch.get_autocast_cpu_dtype, torch.get_autocast_gpu_dtype)


def dtypes_of_autocast() -> tuple[torch.dtype, ...]:
    """What autocast casts to, on or off."""
    return torch.get_autocast_dtype("cpu"), torch.get_autocast_dtype("cuda")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is to be done about a call. why: it is refused. ask: it is asked again before each call."""

    why: str = ""
    ask: Callable[[], Any] | None = None


@dataclass(frozen=True, slots=True)
class _ValueOf:
    variable: ContextVar[Any]

    def __call__(self) -> Any:
        return self.variable.get(MISSING)

    def __repr__(self) -> str:
        return f"context variable {self.variable.name}"


_FINE = Verdict()


def judge(function: Any) -> Verdict:
    """What is to be done about a call of a function of C. function: as a profiler gets it."""
    owner = getattr(function, "__self__", None)
    if owner is None or isinstance(owner, ModuleType) or type(owner).__name__.startswith(_OF_PYBIND):
        home = str(getattr(function, "__module__", None) or getattr(owner, "__name__", ""))
        return _judge_function(function, home)
    if isinstance(owner, torch.Tensor):
        return _FINE
    if isinstance(owner, torch.Generator):
        return Verdict(ask=function) if function.__name__ == "initial_seed" else _FINE
    if isinstance(owner, ContextVar):
        return Verdict(ask=_ValueOf(owner))  # of a variable that is set: what it was before
    if function.__name__ in _ASKED_OF_LOCKS and type(owner).__module__ == "_thread":
        return Verdict(ask=function)
    kind = owner if isinstance(owner, type) else type(owner)
    base = next((base for base in mro_of(kind) if _is_of_c(own_of(base).get(function.__name__))), kind)
    if isinstance(owner, _random.Random):
        return Verdict(why=RANDOM)
    if base.__module__ in ("_datetime", "datetime") and function.__name__ in _DATES:
        return Verdict(why=_CLOCK)
    if base.__module__ == "_io" and (base.__name__ in _OF_TEXT or owner is sys.stdout or owner is sys.stderr):
        return _FINE
    return _judge_home(str(base.__module__), function.__name__)


def _is_of_c(attribute: Any) -> bool:
    return attribute is not None and not is_a(attribute, (FunctionType, property, classmethod))


def _judge_function(function: Any, home: str) -> Verdict:
    name = function.__name__
    if function in _ASKED:
        return Verdict(ask=function)
    if function in _OF_AUTOCAST:
        return Verdict(ask=dtypes_of_autocast)
    if function in setting_functions():
        return Verdict(ask=setting_of(function))
    if any(function is known for known in _HIDDEN_FUNCTIONS):
        return Verdict(why=_HIDDEN)
    if home == "sys":
        return _FINE
    if home in ("io", "_io") and name == "open":
        return Verdict(why="opens a file")
    if home == "builtins" and name == "input":
        return Verdict(why=_FILES)
    return _judge_home(home, name)


def _judge_home(home: str, name: str) -> Verdict:
    if f"{home}.{name}" in _HARMLESS:
        return _FINE
    if home in _OUTSIDE:
        return Verdict(why=_OUTSIDE[home])
    if home.startswith(_DRAWING_PACKAGE):
        return Verdict(why=RANDOM)
    if home in _PURE or not home or home.partition(".")[0] in _PURE_PACKAGES:
        return _FINE
    return Verdict(why="is a function of C of which nothing is known")
